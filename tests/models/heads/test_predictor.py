from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import ConfigError
from sslengine.models.heads.predictor import PredictorHead


def kinds(module: nn.Module) -> list[str]:
    containers = ("Sequential", "MLP")
    names = [type(each).__name__ for each in module.modules()]
    return [name for name in names if name not in containers]


def test_the_head_of_byol() -> None:
    head = PredictorHead([6, 5, 3], [3, 5, 3])
    assert kinds(head.projector) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds(head.predictor) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]


def test_the_head_of_simsiam() -> None:
    head = PredictorHead([6, 5, 5, 4], [4, 2, 4], use_bn_on_projection=True)
    hidden = ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds(head.projector) == [*hidden, *hidden, "Linear", "BatchNorm1d"]
    assert kinds(head.predictor) == [*hidden, "Linear"]
    assert head.projector[-1].weight is None


def test_without_batch_norm() -> None:
    assert "BatchNorm1d" not in kinds(PredictorHead([6, 5, 3], [3, 5, 3], use_bn=False))


def test_projection_and_prediction() -> None:
    head = PredictorHead([6, 5, 3], [3, 4, 3], use_bn_on_projection=True).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    projection, prediction = head(x)
    assert projection.shape == prediction.shape == (7, 3)
    torch.testing.assert_close(prediction, head.predictor(projection))
    torch.testing.assert_close(projection.mean(dim=0), torch.zeros(3).double(), atol=1e-9, rtol=0)
    for one, other in zip(head(x[:, :, None, None]), (projection, prediction), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("predictor_dims", [[4, 5, 3], [3, 5, 4], [4]])
def test_a_prediction_has_the_width_of_the_projection(predictor_dims: list[int]) -> None:
    with pytest.raises(ConfigError, match="^(predictor_)?dims: expected"):
        PredictorHead([6, 5, 3], predictor_dims)


def _biases(**arguments: Any) -> list[str]:
    head = PredictorHead([6, 5, 4], [4, 3, 4], **arguments)
    linear = [name for name, each in head.named_modules() if isinstance(each, nn.Linear)]
    return [name for name in linear if head.get_submodule(name).bias is not None]


def test_which_layers_have_a_bias() -> None:
    hidden, last = (
        ["projector.0.clf.0", "predictor.clf.0"],
        ["projector.0.clf.3", "predictor.clf.3"],
    )
    assert sorted(_biases()) == sorted(hidden + last)
    assert sorted(_biases(use_bias_on_last=False)) == sorted(hidden)  # BYOL's
    # SimSiam's: the projector ends in a batch norm as well.
    assert _biases(use_bn_on_projection=True, use_bias_before_bn=False) == last[1:]
    assert sorted(_biases(use_bias_before_bn=False)) == sorted(last)
    every = [hidden[0], "projector.0.clf.2", hidden[1], "predictor.clf.2"]
    assert sorted(_biases(use_bn=False, use_bias_before_bn=False)) == sorted(every)
