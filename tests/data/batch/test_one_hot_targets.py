from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.data.batch.one_hot_targets import targets_one_hot_default_collator
from sslengine.errors import DataError


def sample(index: int, label: Any) -> dict[str, Any]:
    image = torch.full((3, 2, 2), float(index))
    return {"data": [image], "data_idx": [index], "data_valid": [1], "label": [label]}


def test_what_is_there_what_is_not_and_what_nobody_says() -> None:
    batch = targets_one_hot_default_collator(
        [sample(4, [[1, 3], [4]]), sample(7, [[], [0, 1]]), sample(8, [[2], []])], num_classes=5
    )
    assert batch["label"][0].tolist() == [
        [-1, 1, -1, 1, 0],
        [0, 0, -1, -1, -1],
        [-1, -1, 1, -1, -1],
    ]
    assert batch["data_idx"][0].tolist() == [4, 7, 8]
    assert batch["data"][0][:, 0, 0, 0].tolist() == [4.0, 7.0, 8.0]


@pytest.mark.parametrize("label", [3, [1, 2], [[1], [2], [3]]])
def test_labels_of_another_kind(label: Any) -> None:
    with pytest.raises(DataError, match="a label of two lists"):
        targets_one_hot_default_collator([sample(0, label)], num_classes=5)


def test_classes_that_are_none() -> None:
    with pytest.raises(DataError, match=r"from 0 to num_classes - 1, 4; got \[5\]"):
        targets_one_hot_default_collator([sample(0, [[1], [5]])], num_classes=5)
