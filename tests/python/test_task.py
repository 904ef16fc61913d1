"""Beside test_fit.py, which runs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.errors import DataError
from sslengine.methods.base import Method
from sslengine.python.fit import fit
from tests.python.toys import Points, net, sgd, square
from tests.ranks import RankPool


class Compares(Method):
    def forward(self, output: Any, target: Any) -> Any:
        return square(output, target)


def _method(drop_last: bool) -> str:
    model = net()
    try:
        fit(model, Points(), loss=Compares(), optimizer=sgd(model), epochs=1, batch_size=2, device="cpu",
            drop_last=drop_last)  # fmt: skip
    except DataError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_method_needs_equal_shares(two_ranks: RankPool, drop_last: bool) -> None:
    for text in two_ranks.run(_method, drop_last):
        assert (text == "trained") == drop_last
        assert drop_last or "Compares compares the images of all ranks" in text


@pytest.mark.parametrize("form", ["torch", "dict"])
def test_parameters_that_settings_freeze(form: str) -> None:
    model = net()
    before = model[0].weight.clone()
    lr = {"param_schedulers": {"lr": {"name": "constant", "value": 0.1}}}
    optimizer: Any = sgd(model) if form == "torch" else {"name": "sgd", **lr}
    settings = {"MODEL": {"NON_TRAINABLE_PARAMS": ["0.weight"]}}
    fit(model, Points(), loss=square, optimizer=optimizer, epochs=1, device="cpu", values=settings)
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(model[3].weight, net()[3].weight)
