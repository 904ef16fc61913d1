from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import ConfigError
from sslengine.models.features import build_pooling
from sslengine.models.options import FeatureEvalOptions


def pooling(entries: list[Any], flatten: bool = True) -> nn.Module:
    return build_pooling(
        FeatureEvalOptions(
            EVAL_MODE_ON=True, LINEAR_EVAL_FEAT_POOL_OPS_MAP=entries, SHOULD_FLATTEN_FEATS=flatten
        )
    )


X = torch.arange(2 * 3 * 4 * 4, dtype=torch.float64).view(2, 3, 4, 4)
BLOCKS = X.view(2, 3, 2, 2, 2, 2)  # N, C, row of blocks, row in block, column of blocks, column


@pytest.mark.parametrize(
    ("operation", "arguments", "expected"),
    [
        ("AdaptiveAvgPool2d", [[1, 1]], X.mean((2, 3), keepdim=True)),
        ("AdaptiveMaxPool2d", [1], X.amax((2, 3), keepdim=True)),
        ("AvgPool2d", [[2, 2], 2, 0], BLOCKS.mean((3, 5))),
        ("MaxPool2d", [2], BLOCKS.amax((3, 5))),
        ("Identity", [], X),
    ],
)
def test_operations(operation: str, arguments: list[Any], expected: torch.Tensor) -> None:
    (pooled,) = pooling([["res5", [operation, arguments]]], flatten=False)([X])
    torch.testing.assert_close(pooled, expected)


def test_each_feature_has_its_own_and_may_become_flat() -> None:
    made = pooling([["a", ["Identity", []]], ["b", ["AvgPool2d", [4]]]])
    first, second = made([X, X + 1])
    assert first.shape == (2, 48)
    torch.testing.assert_close(second, X.mean((2, 3)) + 1)
    assert not made.state_dict()


def test_without_features_there_is_no_pooling() -> None:
    assert pooling([]) is None


def test_arguments_that_the_operation_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"OPS_MAP\.0: AvgPool2d\(\): .*kernel_size"):
        pooling([["res5", ["AvgPool2d", []]]])
