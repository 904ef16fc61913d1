"""Every optimizer that ships."""

from __future__ import annotations

import pytest

from sslengine.registry import OPTIMIZERS
from sslengine.testing.promises import Suite
from tests.contracts.cases import Of, cases, forgotten

OPTIMIZERS_SMALL: dict[str, Of] = {
    "sgd": Of({"momentum": 0.9, "nesterov": True}),
    "adam": Of(),
    "adamw": Of({"betas": [0.9, 0.95]}),
    "rmsprop": Of(),
    "lars": Of({"momentum": 0.9}),
    "sgd with LARC": Of({"use_larc": True, "momentum": 0.9}, component="sgd"),
}
LATE = ("accumulates", "ranks_stay_equal", "ranks_stay_equal_sharded",
        "trains_in_bfloat16", "first_loss_is_close_in_bfloat16")  # fmt: skip


@pytest.mark.parametrize(("tried", "promise"), cases("optimizer", OPTIMIZERS_SMALL, LATE))
def test_optimizer(tried: Suite, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(OPTIMIZERS, OPTIMIZERS_SMALL) == []
