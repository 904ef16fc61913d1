"""Features and labels that do not fit are refused, each with what is wrong."""

from __future__ import annotations

import pytest
import torch

from sslengine.errors import DataError
from sslengine.evaluation.features import check_features

TRAIN, LABELS, TEST = torch.ones(4, 3), torch.tensor([0, 1, 1, 0]), torch.ones(2, 3)
NAN = torch.full((2, 3), float("nan"))


def test_what_fits_passes() -> None:
    check_features("Judge", TRAIN, LABELS, TEST)


@pytest.mark.parametrize(
    ("train", "labels", "test", "message"),
    [
        (TRAIN, LABELS[:3], TEST, r"one label for each of the 4 .* of shape \(3,\)"),
        (
            TRAIN,
            LABELS[:, None, None],
            TEST,
            r"one label for each of the 4 .* of shape \(4, 1, 1\)",
        ),
        (TRAIN, 7 + LABELS[:, None], TEST, "expected indicators 1, 0, or -1"),
        (TRAIN, LABELS - 1, TEST, "class numbers, 0 and up"),
        (TRAIN[:0], LABELS[:0], TEST, "class numbers, 0 and up"),
        (TRAIN, LABELS, torch.ones(2, 5), r"shape \(3,\) cannot .* shape \(5,\)"),
        (TRAIN * float("inf"), LABELS, TEST, "some training features are NaN or infinite"),
        (TRAIN, LABELS, NAN, "some test features are NaN or infinite"),
    ],
)
def test_what_does_not_fit(
    train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, message: str
) -> None:
    with pytest.raises(DataError, match=f"Judge: .*{message}"):
        check_features("Judge", train, labels, test)
