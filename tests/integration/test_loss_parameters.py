"""Trainable parameters inside a loss: refused where no optimizer would train them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslengine
from sslengine.config.resolve import resolve_dict
from sslengine.errors import ConfigError
from sslengine.task.task import SelfSupervisionTask
from sslengine.trainer import loop
from tests.config.recipes import recipe
from tests.python.toys import Points, batches, net, sgd, square
from tests.ranks import RankPool


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


class Predicting(nn.Module):
    """A loss as BYOL's first version had it: the predictor is the loss's own."""

    def __init__(self, frozen: bool = False, dim: int = 8) -> None:
        super().__init__()
        self.predictor = nn.Sequential(nn.Linear(dim, 4), nn.ReLU(), nn.Linear(4, dim))
        self.predictor.requires_grad_(not frozen)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        one, two = output.chunk(2)
        return -F.cosine_similarity(self.predictor(one), two.detach()).mean()


NAME = f"{__name__}:Predicting"


def _run(folder: str, ranks: int, **changes: Any) -> dict[str, Any]:
    """What the run raised, and the loss's values before and after."""
    tree = recipe(
        LOSS={"name": NAME, "Predicting": changes.pop("arguments", {})},
        DISTRIBUTED__NUM_PROC_PER_NODE=ranks,
        **changes,
    )
    task = SelfSupervisionTask(
        resolve_dict(tree).config, Path(folder), torch.device("cpu"), None, []
    )
    try:
        task.prepare()
    except ConfigError as error:
        return {"error": str(error)}
    before = [value.clone() for value in task.loss.parameters()]
    loop.run(task)
    moved = [not torch.equal(*pair) for pair in zip(before, task.loss.parameters(), strict=True)]
    return {"error": "", "moved": moved}


def _expect_told(text: str) -> None:
    names = "loss.predictor.0.bias, loss.predictor.0.weight, loss.predictor.2.bias"
    assert f"parameters of Predicting, which would keep their first values: {names}" in text
    for advice in (
        "config.MODEL.HEAD.PARAMS",
        "multi_optimizer_train_step",
        "requires_grad_(False",
    ):
        assert advice in text


def test_a_predictor_that_no_optimizer_owns_is_refused(tmp_path: Path) -> None:
    _expect_told(_run(str(tmp_path), 1)["error"])


def test_and_at_two_ranks(tmp_path: Path, two_ranks: RankPool) -> None:
    for found in two_ranks.run(_run, str(tmp_path), 2):
        _expect_told(found["error"])


def test_what_is_frozen_passes(tmp_path: Path) -> None:
    assert _run(str(tmp_path), 1, arguments={"frozen": True})["moved"] == [False] * 4


def test_a_run_that_only_tests_trains_nothing(tmp_path: Path) -> None:
    data = recipe()["DATA"]["TRAIN"]
    found = _run(str(tmp_path), 1, TEST_ONLY=True, TEST_MODEL=True, DATA__TEST=data)
    assert found == {"error": "", "moved": [False] * 4}


SCHEDULE = {"name": "constant", "value": 0.1}
TWO = {
    "TRAIN_STEP_NAME": "multi_optimizer_train_step",
    "multi_optimizer_train_step": {
        "OPTIMIZERS": {
            name: {"parameters": [f"{name}*"], "losses": ["loss"], "name": "sgd",
                   "param_schedulers": {"lr": SCHEDULE}}
            for name in ("trunk", "heads", "loss")
        }
    },
}  # fmt: skip


def test_with_an_optimizer_of_their_own_they_move(tmp_path: Path, two_ranks: RankPool) -> None:
    """What the error proposes, at one rank and at two."""
    alone = _run(str(tmp_path), 1, TRAINER=TWO)
    for found in (alone, *two_ranks.run(_run, str(tmp_path), 2, TRAINER=TWO)):
        assert found == {"error": "", "moved": [True] * 4}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scale * square(output, target)

    def other(self, output: Tensor, target: Tensor) -> Tensor:
        return self(output, target)


def _fit(form: str) -> str:
    model, loss = net(), Scaled()
    given = {"module": loss, "method": loss.other}[form]
    try:
        sslengine.fit(model, given, batches(Points()), sgd(model), epochs=1, device="cpu")
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("form", ["module", "method"])
def test_from_python(form: str) -> None:
    assert re.search(r"parameters of \w+, which would keep .*: loss\.(owner\.)?scale", _fit(form))


def test_from_python_at_two_ranks(two_ranks: RankPool) -> None:
    assert all("loss.scale" in text for text in two_ranks.run(_fit, "module"))


def test_an_optimizer_of_some_parameters_alone() -> None:
    model = net()
    with pytest.raises(ConfigError, match="parameters of the model, .*: 0.bias, 0.weight. Give"):
        sslengine.fit(model, square, batches(Points()), sgd(model[3]), epochs=1, device="cpu")
    model[0].requires_grad_(False)
    before = model[3].weight.clone()
    sslengine.fit(model, square, batches(Points()), sgd(model[3]), epochs=1, device="cpu")
    assert not torch.equal(before, model[3].weight)
