from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files, saver
from sslengine.checkpoint.manifest import verify
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.engine.checkpointing import SaveCheckpoints, checkpoint_state
from sslengine.errors import CheckpointError
from tests.engine.runs import Stop, Watch, make_task, train


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in files.list_checkpoints(folder))


def _options(every_phases: int, every_steps: int) -> CheckpointOptions:
    return CheckpointOptions(
        CHECKPOINT_FREQUENCY=every_phases, CHECKPOINT_ITER_FREQUENCY=every_steps
    )


@pytest.mark.parametrize(
    ("every_phases", "every_steps", "names"),
    [
        (1, -1, ["phase0", "phase1"]),
        (2, -1, ["phase1"]),
        (-1, -1, []),
        (-1, 5, ["iteration10", "iteration5"]),
        # At steps 4, 8 and 12 a phase ends: its checkpoint has the phase's name.
        (-1, 4, ["phase0", "phase1"]),
        (2, 4, ["phase0", "phase1"]),
        (2, 6, ["iteration6", "phase1"]),
    ],
)
def test_when_a_run_is_saved(
    tmp_path: Path, every_phases: int, every_steps: int, names: list[str]
) -> None:
    hook = SaveCheckpoints(tmp_path, _options(every_phases, every_steps))
    train(tmp_path, [hook], OPTIMIZER__num_epochs=3)
    last = "model_final_checkpoint_phase2.torch"
    assert _names(tmp_path) == [last, *(f"model_{name}.torch" for name in names)]
    assert (tmp_path / files.POINTER).resolve().name == last


def test_a_checkpoint_in_mid_phase_says_so(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train(tmp_path, [SaveCheckpoints(tmp_path, _options(1, 3)), Watch(stop_after=4)])
    progress = files.newest(tmp_path)[1]["classy_state_dict"]["progress"]
    assert progress == {"phase": 0, "step": 3, "of": 4, "testing": 0, "iteration": 3, "samples": 12,
                        "num_updates": 3, "stopped": 0}  # fmt: skip


def test_the_content_has_vissls_keys_around_the_tasks_state(tmp_path: Path) -> None:
    task = make_task(tmp_path, [])
    state: dict[str, Any] = checkpoint_state(task)
    assert set(state) == {
        "type", "phase_idx", "train_phase_idx", "iteration", "iteration_num", "loss",
        "classy_state_dict",
    }  # fmt: skip
    assert state["iteration_num"] == -1


def test_the_manifest_tells_of_the_run(tmp_path: Path) -> None:
    train(tmp_path, [SaveCheckpoints(tmp_path, _options(1, -1))])
    newest, before = (verify(path) for path in files.list_checkpoints(tmp_path))
    assert (before.iteration, before.train_phase, before.number) == (4, 0, 1)
    assert (newest.iteration, newest.train_phase, newest.number) == (8, 1, 2)
    assert newest.world_size == 1
    assert newest.versions["torch"] == torch.__version__
    assert len(newest.config) == 64
    assert newest.config == before.config
    assert set(newest.results) == {"train"}
    assert newest.results["train"]["loss"] > 0


def test_the_last_save_must_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mid-run training continues; but a run whose end is not saved has failed."""
    monkeypatch.setattr(saver, "WAITS", ())
    folder = tmp_path / "file"
    folder.write_text("a file where the folder should be")
    hook = SaveCheckpoints(folder, _options(1, -1))
    with pytest.raises(CheckpointError, match=r"cannot write .*final_checkpoint.*File exists"):
        train(tmp_path, [hook])
    assert folder.read_text() == "a file where the folder should be"
