"""What keeps a trunk's features near those of its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.sections import read
from sslengine.engine import loop
from sslengine.engines.train import train
from sslengine.hooks.events import Hook
from sslengine.methods.step import Step
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.models.preserve import Preservation
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engine.sharded import CROPS, SMALL_VIT
from tests.engines.runs import make_run
from tests.methods.resuming import assert_goes_on_bit_by_bit

ROWS = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GIVEN = torch.tensor(2.0, dtype=torch.float64)


def made() -> tuple[Any, Preservation]:
    model = build_model(read(resolved(**SMALL_VIT).config, ModelOptions)).double()
    term = Preservation(0.5)
    term.attach(model)
    return model, term.train()


def moved(model: nn.Module) -> None:
    with torch.no_grad():
        for number, each in enumerate(model.parameters()):
            each += 0.05 * torch.sin(torch.arange(each.numel()).view(each.shape) + number)


INPUTS: dict[str, Any] = {
    "rows": ROWS, "views": [ROWS[:3], ROWS[3:]], "inputs": {"global_views": [ROWS], "mask": GIVEN},
}  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
def test_the_term_and_its_gradient_are_those_of_the_formula(kind: str) -> None:
    """Of the first views of the three images."""
    model, term = made()
    first = ROWS[:3]
    with torch.no_grad():
        (start,) = model.trunk(first)
    nothing = term({"loss": GIVEN, "other": GIVEN}, INPUTS[kind], 3, Step.alone())
    torch.testing.assert_close(nothing["loss"], GIVEN, rtol=0, atol=1e-14)
    moved(model.trunk)
    found = term(GIVEN, INPUTS[kind], 3, Step.alone())
    (now,) = model.trunk(first)
    expected: Any = sum(
        1 - (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt()) for a, b in zip(now, start, strict=True)
    )
    close = {"rtol": 1e-10, "atol": 1e-13}
    assert expected > 1e-3
    torch.testing.assert_close(found["preservation"], expected / 3, **close)
    torch.testing.assert_close(found["loss"], 2 + 0.5 * expected / 3, **close)
    (one,) = torch.autograd.grad(found["loss"], [model.trunk.patch_embed.proj.weight])
    (two,) = torch.autograd.grad(expected / 6, [model.trunk.patch_embed.proj.weight])
    torch.testing.assert_close(one, two, **close)


def test_the_start_is_the_weights_that_the_run_starts_from(tmp_path: Path) -> None:
    assert train(make_run(tmp_path / "first", OPTIMIZER__num_epochs=1, **SMALL_VIT))
    weights = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(tmp_path / "first")}
    task = make_task(tmp_path, [], **SMALL_VIT, **weights, MODEL__PRESERVE__WEIGHT=1.0)
    task.load_initial_weights()
    start: dict[str, Tensor] = task.loss.preservation.start.state_dict()
    own = {f"trunk.{name}": each for name, each in task.base_model.trunk.state_dict().items()}
    assert start.keys() == own.keys()
    assert all(torch.equal(start[name], own[name]) for name in own)


class Terms(Hook):
    def on_step(self, task: Any) -> None:
        self.last = task.storage.take_losses()[-1].parts


def test_of_crops_it_resumes_to_the_bit_and_is_logged(tmp_path: Path) -> None:
    head = [["swav_head", {"dims": [18, 7], "use_bn": False, "num_clusters": [5]}]]
    more = {"LOSS": {"name": "swav_loss"}, "MODEL__HEAD__PARAMS": head}
    swav = {**SMALL_VIT, **CROPS, **more, "MODEL__PRESERVE__WEIGHT": 10.0}
    assert_goes_on_bit_by_bit(tmp_path, **swav)
    terms = Terms()
    loop.run(make_task(tmp_path, [terms], **swav))
    assert 0 < 10 * terms.last["preservation"] < terms.last["loss"]
