from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.errors import TrainingError
from sslengine.train_steps.model import call, parse, preprocessed


class Plain:
    """A model with nothing but what it must have."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


ONES = torch.ones(2)


def test_data_becomes_keywords_or_arguments() -> None:
    assert call(Plain(), {"a": 1}, "loss") == ((), {"a": 1, "mode": "loss"})
    assert call(Plain(), [1, 2], "predict") == ((1, 2), {"mode": "predict"})
    assert call(Plain(), (1,), "tensor") == ((1,), {"mode": "tensor"})
    with pytest.raises(TypeError, match="the data is a str"):
        call(Plain(), "text", "loss")


def test_preprocessing_is_the_models_if_it_has_any() -> None:
    class Preprocesses(Plain):
        def data_preprocessor(self, data: Any, training: bool) -> Any:
            return data, training

    assert preprocessed(Plain(), 1, training=True) == 1
    assert preprocessed(Preprocesses(), 1, training=False) == (1, False)


def test_what_has_loss_in_its_name_is_minimised() -> None:
    parts = parse(Plain(), {"loss_a": 2 * ONES, "b_loss": [ONES, 3 * ONES], "acc": 9 * ONES})
    values = {name: value.item() for name, value in parts.items()}
    assert values == {"loss": 6.0, "loss_a": 2.0, "b_loss": 4.0, "acc": 9.0}


def test_a_models_own_parse_losses_decides() -> None:
    class Parses(Plain):
        def parse_losses(self, losses: Any) -> Any:
            return losses["a"] * 10, {"a": losses["a"], "loss": losses["a"] * 10}

    parts = parse(Parses(), {"a": torch.tensor(2.0)})
    assert {name: value.item() for name, value in parts.items()} == {"loss": 20.0, "a": 2.0}


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (ONES, "Plain must return a dict of losses .*it returned a Tensor"),
        ({"acc": ONES}, 'returned acc: what is to be minimised has "loss" in its name'),
        ({}, "returned nothing"),
        ({"loss": 3.0}, "loss is a float, not a tensor"),
    ],
)
def test_what_is_no_loss_is_told(losses: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        parse(Plain(), losses)
