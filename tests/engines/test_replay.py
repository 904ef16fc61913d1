"""A step that is replayed, and how a run describes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sslengine.engines.replay import replay, watch
from sslengine.engines.train import train
from sslengine.errors import NonFiniteLossError, TrainingError
from sslengine.hooks.events import Hook
from sslengine.registry import HOOKS, register_hook
from tests.engines.runs import make_run, screen

if "test_poison" not in HOOKS:

    @register_hook("test_poison")
    class PoisonWeights(Hook):
        """After a step, one number of one layer becomes infinite."""

        def __init__(self, after: int) -> None:
            self.after = after

        def on_update(self, task: Any) -> None:
            if task.iteration + 1 == self.after:
                with torch.no_grad():
                    task.base_model.trunk.layer2[0].conv1.weight.view(-1)[0] = torch.inf


POISONED: dict[str, Any] = {
    "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 2,
    "HOOKS__EXTRA": [{"name": "test_poison", "after": 6}],
}


def _content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def test_the_place_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"(?s)iteration 7 .*sslengine replay"):
        train(make_run(tmp_path, LOG_FREQUENCY=1, **POISONED))
    before = _content(tmp_path)
    again = make_run(tmp_path, "replay", LOG_FREQUENCY=1, **POISONED)
    with pytest.raises(TrainingError) as error:
        replay(again)
    text = str(error.value)
    assert text.startswith("iteration 7, rank 0: model.trunk.layer2.0.conv1 (Conv2d) is the first")
    assert "Its input is finite; its largest weights: weight inf." in text
    assert "images: " in text
    assert "replay from step 7, model_iteration6.torch" in screen(again)
    assert _content(tmp_path) == before


def test_a_healthy_run_is_said_to_be_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, "replay")
    replay(run)
    assert "from the start: there is no checkpoint" in screen(run)
    assert "steps 1 to 8: all values are finite." in screen(run)
    assert not list(tmp_path.iterdir())


def test_of_a_run_that_has_ended_nothing_is_replayed(tmp_path: Path) -> None:
    train(make_run(tmp_path))
    run = make_run(tmp_path, "replay")
    replay(run)
    assert "nothing to replay: the run made all its 8 steps" in screen(run)
    assert "all values are finite" not in screen(run)


class Diverges(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x).sqrt() / (x - x)


def test_the_innermost_module_is_named_with_its_input() -> None:
    model = torch.nn.Sequential(torch.nn.Identity(), Diverges())
    watch(model, "model")
    with pytest.raises(NonFiniteLossError, match=r"model\.1 \(Diverges\) .*3 of 3 .*is finite"):
        model(torch.ones(3))
    with pytest.raises(
        NonFiniteLossError, match=r"model\.0 \(Identity\) .*1 of 2 .*is not finite;"
    ):
        model(torch.tensor([1.0, torch.nan]))


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    class RootOfZero(Hook):
        """Its value is finite, its gradient is not a number."""

        def on_forward(self, task: Any) -> None:
            if task.iteration == 2:
                output = task.last_batch.model_output
                task.last_batch.model_output = output + 0 * (0 * output).abs().sqrt()

    if "test_root" not in HOOKS:
        register_hook("test_root")(RootOfZero)
    with pytest.raises(
        TrainingError, match=r"iteration 3, rank 0: Function '\w+Backward0' returned nan"
    ):
        replay(make_run(tmp_path, "replay", HOOKS__EXTRA=["test_root"]))


# ---- run


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("train", ["config.yaml", "environment.json", "signature.json"]),
        ("evaluate", ["config_evaluate.yaml", "environment_evaluate.json", "signature.json"]),
    ],
)
def test_a_run_describes_itself_and_leaves_anothers_description_alone(
    tmp_path: Path, engine: str, names: list[str]
) -> None:
    make_run(tmp_path / "run", engine).describe()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    shown = yaml.safe_load((tmp_path / "run" / names[0]).read_text())
    assert shown["engine_name"] == engine
    assert json.loads((tmp_path / "run" / names[1]).read_text())["sslengine"]


def test_what_holds_values_of_the_environment_is_the_owners_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "run").describe()
    assert (tmp_path / "run" / "environment.json").stat().st_mode & 0o777 == 0o600
