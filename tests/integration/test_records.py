"""What any hook puts at any event is in the record of that event: seen in the files of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sslengine.monitor.history import read_nested
from tests import warm
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.integration.command import COMMAND, write_config

STEP = ("on_step_start", "on_forward", "on_loss_and_meter")
TRAIN_STEP = (*STEP, "on_backward", "on_update")
# Killed in the fourth step, and in the second step of the test phase after the second epoch.
LIVES = [[True, 3, 3], [False, 8, 1]]
PLUGIN = "puts_everywhere"


def _project(folder: Path, ranks: int, lives: list[Any]) -> Path:
    hooks = ["Named", "Classy", "Detectron2", "OverRanks", {"name": "Kill", "lives": lives}]
    named = [{"name": each} if isinstance(each, str) else each for each in hooks]
    write_config(
        folder, **SUPERVISED, **WITH_TEST,
        HOOKS__EXTRA=[{**each, "name": f"{PLUGIN}:{each['name']}"} for each in named],
        HOOKS__WRITERS=["json"],
        CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=3,
        DISTRIBUTED__NUM_PROC_PER_NODE=ranks,
        DATA__TRAIN__BATCHSIZE_PER_REPLICA=4 // ranks,
        DATA__TEST__BATCHSIZE_PER_REPLICA=4 // ranks,
    )  # fmt: skip
    config = folder / "configs" / "tiny.yaml"
    text = config.read_text().replace(SUPERVISED["LOSS"]["name"], f"{PLUGIN}:Method")
    config.write_text(text)
    shutil.copy(Path(__file__).with_name(f"{PLUGIN}.py"), folder)
    return folder / "runs" / "tiny"


def _run(folder: Path, lives: int) -> None:
    for life in range(lives):
        done = warm.run(COMMAND, cwd=folder)
        assert (done.returncode == 0) == (life == lives - 1), done.stderr


def _of_step(made: int) -> dict[str, int]:
    """What is put in the step before a record."""
    expected: dict[str, int] = {}
    for name in ("named", "own", "classy"):
        expected |= {f"{name}/{event}": made - 1 for event in TRAIN_STEP}
        expected[f"{name}/on_step"] = made
    expected |= {f"detectron2/{call}": made - 1
                 for call in ("before_step", "after_backward", "after_step")}  # fmt: skip
    return expected


def _of_phase(made: int, split: str) -> dict[str, int]:
    names = ("named", "own", "classy")
    events = ("on_phase_end",) if split == "train" else (
        "on_phase_start", *STEP, "on_step", "on_phase_end"
    )  # fmt: skip
    return {f"{name}/{event}": made for name in names for event in events}


def _put(line: dict[str, Any]) -> dict[str, Any]:
    kinds = ("named/", "own/", "classy/", "detectron2/")
    return {name: value for name, value in line.items() if name.startswith(kinds)}


def _check(run: Path, ranks: int, resumed: dict[int, tuple[int, bool]]) -> None:
    """resumed: step records that are the first of a life -> its first step, in mid-phase?"""
    lines = read_nested(run / "metrics.jsonl")
    places = [(each["kind"], each["split"], each["iteration"]) for each in lines]
    of_epoch = [
        [*(("step", "train", first + step) for step in (1, 2, 4)),
         ("phase", "train", first + 4), ("phase", "test", first + 4)]
        for first in (0, 4)
    ]  # fmt: skip
    assert places == [*of_epoch[0], *of_epoch[1], ("end", "test", 8)]
    for line in lines:
        made = line["iteration"]
        if line["kind"] == "step":
            expected = _of_step(made)
            for name in ("named", "own", "classy"):
                if made in (1, 5):
                    expected[f"{name}/on_phase_start"] = made - 1
                if made in resumed:
                    begun, in_phase = resumed[made]
                    expected[f"{name}/on_start"] = begun
                    expected |= {f"{name}/on_phase_start": begun} if in_phase else {}
            if made in resumed:
                expected["detectron2/before_train"] = resumed[made][0]
            assert _put(line) == expected
            assert line["ranks/on_step"] == ranks * made
        elif line["kind"] == "phase":
            expected = _of_phase(made, line["split"])
            if (line["split"], made) == ("test", 8) and len(resumed) > 1:
                expected |= {f"{name}/on_start": 8 for name in ("named", "own", "classy")}
                expected["detectron2/before_train"] = 8
            assert _put(line) == expected
            assert line["ranks/on_phase_end"] == ranks * made
            assert line["results"] == {"on_phase_end": made}
        else:
            ended = {f"{name}/on_end": 8 for name in ("named", "own", "classy")}
            assert _put(line) == {**ended, "detectron2/after_train": 8}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_and_resumed_without_doubles_or_gaps(tmp_path: Path, ranks: int) -> None:
    """Resumed after step 3, so the record after step 4 is the first of the second life."""
    run = _project(tmp_path, ranks, LIVES)
    _run(tmp_path, lives=3)
    _check(run, ranks, {1: (0, False), 4: (3, True)})
