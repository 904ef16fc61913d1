from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.data.augment.transforms.one_hot import OneHotEncode
from tests.data.test_feed import feed


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2, [0, 0, 1, 0]),
        ([0, 3], [1, 0, 0, 1]),
        (torch.tensor([1, 1]), [0, 1, 0, 0]),
        ([], [0, 0, 0, 0]),
    ],
)
def test_a_vector_of_classes(label: Any, expected: list[int]) -> None:
    assert OneHotEncode(num_classes=4)(label).tolist() == expected


def test_labels_of_a_batch() -> None:
    """Each view has its own; torch's own one_hot is the judge."""
    transforms = [
        {"name": "ImgReplicatePil"}, {"name": "OneHotEncode", "num_classes": 22}, {"name": "ToTensor"},
    ]  # fmt: skip
    for batch in feed(TRANSFORMS=transforms).batches():
        expected = torch.nn.functional.one_hot(batch["data_idx"][0], 22)
        assert torch.equal(batch["label"][0], expected)


@pytest.mark.parametrize("place", [1, 2])
def test_it_does_not_make_workers_send_floats(place: int) -> None:
    transforms: list[dict[str, Any]] = [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}]
    transforms.insert(place, {"name": "OneHotEncode", "num_classes": 22})
    one = feed(TRANSFORMS=transforms)
    (image, _) = one.dataset.__getitems__([(0, 1)])[0]["data"]
    assert image.dtype == torch.uint8
    batch = next(one.batches())
    assert batch["data"][0].dtype == torch.float32
    assert batch["label"][0].shape[-1] == 22


def test_classes_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"from 0 to num_classes - 1, 3; got \[4\]"):
        OneHotEncode(4)(4)
    with pytest.raises(ValueError, match="num_classes: expected 1 or more, got 0"):
        OneHotEncode(0)
