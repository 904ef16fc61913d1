"""Heads: by formula, VISSL's names and defaults, and how a config builds them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import hardswish

from sslengine.contrib.trunks.mobilenet_v3_heads import (
    MobileNetV3Head,
    TimmMobileNetV3Head,
)
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.models.build import build_heads
from sslengine.models.heads.mlp import (
    MLP,
    EvalMLP,
    PredictorHead,
    SiameseConcatView,
    WeightNormLinear,
)
from sslengine.models.options import HeadOptions


def build(*params: Any, **options: Any) -> nn.ModuleList:
    torch.manual_seed(0)
    return build_heads(HeadOptions(PARAMS=list(params), **options))


def test_names_are_those_of_vissl() -> None:
    heads = build(["mlp", {"dims": [3, 2]}], ["mlp", {"dims": [2, 2], "use_bias": False}])
    assert list(heads.state_dict()) == ["0.clf.0.weight", "0.clf.0.bias", "1.clf.0.weight"]
    nested = build([["mlp", {"dims": [3, 2]}], ["siamese_concat_view", {"num_towers": 2}]])
    assert list(nested.state_dict()) == ["0.0.clf.0.weight", "0.0.clf.0.bias"]


def test_batch_norms_of_all_heads_get_eps_and_momentum() -> None:
    heads = build(
        ["eval_mlp", {"in_channels": 3, "dims": [3, 2]}],
        [["mlp", {"dims": [3, 2, 2], "use_bn": True}]],
        BATCHNORM_EPS=0.5,
        BATCHNORM_MOMENTUM=0.25,
    )
    norms = [m for m in heads.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert [(norm.eps, norm.momentum) for norm in norms] == [(0.5, 0.25)] * 2


def test_the_multiplier_scales_linear_layers_alone() -> None:
    params = ["mlp", {"dims": [3, 4, 2], "use_bn": True}]
    plain, scaled = build(params).state_dict(), build(params, PARAMS_MULTIPLIER=0.01).state_dict()
    for name in plain:
        factor = 0.01 if name.startswith(("0.clf.0.", "0.clf.2.")) else 1
        torch.testing.assert_close(scaled[name], factor * plain[name], msg=name)


def test_errors_say_which_head() -> None:
    with pytest.raises(ConfigError, match=r"^config\.MODEL\.HEAD\.PARAMS\.1\.dims: expected two"):
        build(["identity", {}], ["mlp", {"dims": [3]}])
    with pytest.raises(UnknownNameError, match=r"PARAMS\.0: there is no head named 'mpl'"):
        build(["mpl", {}])


@pytest.mark.parametrize("width", [0, -5])
@pytest.mark.parametrize("head", ["dino_head", "swav_head", "mlp"])
def test_a_head_without_outputs_is_refused(head: str, width: int) -> None:
    """The loss of 0 prototypes is 0, and training would go on."""
    arguments: dict[str, Any] = {
        "dino_head": {"in_dim": 3, "num_clusters": [width]},
        "swav_head": {"dims": [3, 4], "use_bn": False, "num_clusters": [width]},
        "mlp": {"dims": [3, width]},
    }[head]
    with pytest.raises(ConfigError, match=rf"PARAMS\.0\.{head}: "):
        build([head, arguments])


# ---- mlp


def kinds(head: MLP) -> list[str]:
    return [type(layer).__name__ for layer in head.clf]


def test_layers_and_their_order() -> None:
    head = MLP([3, 4, 2], use_bn=True, use_relu=True, use_dropout=True)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]
    head = MLP([3, 4, 2], use_bn=True, use_relu=True, skip_last_layer_relu_bn=False)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU"]
    assert kinds(MLP([3, 4], use_bn=True, use_relu=True, use_dropout=True)) == ["Linear"]
    bare = MLP([3, 4, 2], use_bias=False)
    assert not any(layer.bias is not None for layer in bare.clf)


def test_two_layers_by_formula() -> None:
    head = MLP([3, 4, 2], use_bn=True, use_relu=True).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    first, second = head.clf[0], head.clf[3]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    hidden = x @ first.weight.T + first.bias
    normed = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    expected = normed.clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(x[:, :, None, None]), expected)


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 2, 2), (5, 3, 1), (3,)])
def test_features_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^config\.MODEL\.HEAD\.PARAMS: "):
        MLP([3, 2])(torch.zeros(shape))


# ---- eval mlp


def test_a_map_by_formula() -> None:
    head = EvalMLP(in_channels=2, dims=[8, 3]).double()
    x = 5 + 2 * torch.randn(6, 2, 2, 2, dtype=torch.float64)
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), correction=0, keepdim=True)
    normed = ((x - mean) / (variance + 1e-5).sqrt()).reshape(6, 8)
    weight, bias = head.clf.clf[0].weight, head.clf.clf[0].bias
    torch.testing.assert_close(head(x), normed @ weight.T + bias)


def test_names_are_those_of_vissl_eval_mlp() -> None:
    names = set(EvalMLP(2, [2, 3]).state_dict())
    assert {"channel_bn.weight", "channel_bn.running_mean", "clf.clf.0.weight"} <= names


# ---- predictor


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


# ---- siamese concat view


@pytest.mark.parametrize("trailing", [(), (1, 1)])
def test_rows_of_an_image_stand_side_by_side(trailing: tuple[int, ...]) -> None:
    rows = torch.tensor([[10, 11], [12, 13], [14, 15], [20, 21], [22, 23], [24, 25]])
    joined = SiameseConcatView(num_towers=3)(rows.view(6, 2, *trailing))
    assert joined.tolist() == [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]]


# ---- mobilenet v3


BOTH = pytest.mark.parametrize("make", [MobileNetV3Head, TimmMobileNetV3Head])


@BOTH
def test_by_formula(make: type[MobileNetV3Head]) -> None:
    head = make(6, 5, 3, drop_out=0.0, with_bn=True).double().train()
    x = 3 + 2 * torch.randn(8, 6, dtype=torch.float64)
    normed = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    state = head.state_dict()
    first = normed @ state["classifier.0.weight"].flatten(1).T + state["classifier.0.bias"]
    last = head.classifier[-1]
    expected = hardswish(first) @ last.weight.T + last.bias
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(x[:, :, None, None]), expected)


def test_names_are_those_of_vissl_mobilenet_v3() -> None:
    weights = {"classifier.0.weight": (5, 6), "classifier.3.weight": (3, 5)}
    shapes = {name: tuple(each.shape) for name, each in MobileNetV3Head(6, 5, 3).named_parameters()}
    assert shapes == {**weights, "classifier.0.bias": (5,), "classifier.3.bias": (3,)}
    names = set(TimmMobileNetV3Head(6, 5, 3, with_bn=True).state_dict())
    assert {"classifier.0.weight", "classifier.4.bias", "channel_bn.running_mean"} <= names
    assert TimmMobileNetV3Head(6, 5, 3).classifier[0].weight.shape == (5, 6, 1, 1)


# ---- weight norm linear


def test_as_torchs_own_with_its_names() -> None:
    torch.manual_seed(0)
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5, bias=False))
    ours = WeightNormLinear(3, 5)
    g, v = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    ours.load_state_dict({"weight_g": g, "weight_v": v})
    x = torch.randn(4, 3)
    (ours(x) ** 2).sum().backward()
    (theirs(x) ** 2).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.weight_g.grad, g.grad)
    torch.testing.assert_close(ours.weight_v.grad, v.grad)


@pytest.mark.parametrize("learn", [True, False])
def test_lengths_start_at_one_and_are_learnt_if_wanted(learn: bool) -> None:
    layer = WeightNormLinear(3, 5, learn_lengths=learn)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(5))
    layer(torch.ones(1, 3)).sum().backward()
    assert (layer.weight_g.grad is not None) is learn
    assert layer.weight_v.grad is not None


def test_it_can_be_copied_after_a_forward_and_says_its_size() -> None:
    layer = WeightNormLinear(3, 5)
    layer(torch.ones(1, 3))
    copied = copy.deepcopy(layer)
    assert copied.weight_v.data_ptr() != layer.weight_v.data_ptr()
    assert torch.equal(copied.weight_v, layer.weight_v)
    assert repr(layer) == "WeightNormLinear(in_features=3, out_features=5)"
