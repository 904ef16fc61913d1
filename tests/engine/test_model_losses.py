from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.engine.loss_dict import (
    are_losses,
    is_engine_batch,
    sum_of_losses,
    whole_batch_sample,
)
from sslengine.errors import TrainingError
from tests.engine.tasks import make_batch

ONE, TWO = torch.tensor(1.0), torch.tensor([2.0])


def test_the_losses_are_added_up_and_keep_their_names() -> None:
    losses = sum_of_losses({"a": ONE, "b": TWO}, "Net")
    assert {name: value.item() for name, value in losses.items()} == {"loss": 3, "a": 1, "b": 2}
    assert all(value.ndim == 0 for value in losses.values())


def test_a_single_loss_is_the_sum() -> None:
    assert sum_of_losses(ONE, "Net") == {"loss": ONE}
    assert sum_of_losses({"loss": TWO}, "Net").keys() == {"loss"}
    assert sum_of_losses({"a": TWO}, "Net").keys() == {"loss", "a"}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"a": torch.ones(2)}, r"Net returned 'a' as a tensor of shape \(2,\); a loss is one num"),
        ({"a": ONE, "b": 3.0}, "Net returned 'b' as a float"),
        ({"loss": ONE, "b": ONE}, "a loss named 'loss' and also 'b': that name is taken"),
        ({}, "it returned an empty dict"),
        ([ONE], "it returned a list"),
    ],
)
def test_what_is_no_loss_is_told(output: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        sum_of_losses(output, "Net")


def test_predictions_are_no_losses() -> None:
    assert are_losses(ONE)
    assert are_losses({"a": ONE})
    assert not are_losses({})
    assert not are_losses(torch.ones(3, 2))
    assert not are_losses({"boxes": torch.ones(3, 4), "score": ONE})
    assert not are_losses([{"boxes": ONE}])


def test_the_model_gets_the_batch_by_its_own_names() -> None:
    batch = {key: [value] for key, value in make_batch().items()}
    sample = whole_batch_sample(batch, ["data"], ["label"])
    assert sample["input"].keys() == {"data", "label", "data_idx", "data_valid"}
    assert sample["input"]["data"] is batch["data"][0]
    assert sample["target"] is batch["label"][0]
    assert "data_idx" in sample


def test_a_batch_of_another_form_is_the_input() -> None:
    batch = [{"image": 1}]
    assert not is_engine_batch(batch)
    assert whole_batch_sample(batch, ["data"], ["label"]) == {"input": batch, "target": None}
