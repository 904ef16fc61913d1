from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.config.components import argument_problems
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.models.heads.build import build_heads
from sslengine.models.options import HeadOptions
from sslengine.registry import HEADS, register_head


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
    with pytest.raises(ConfigError, match=rf"PARAMS\.0\.{head}: a width in .* is (0: |below 0)"):
        build([head, arguments])


def test_a_head_of_ones_own() -> None:
    @register_head("doubling_head_of_test_build")
    class Doubling(nn.Module):
        def __init__(self, factor: float = 2.0) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * x

    (head,) = build(["doubling_head_of_test_build", {"factor": 3.0}])
    assert head(torch.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("mlp", {"dims": [3, 2], "use_bm": True}, "Did you mean 'use_bn'"),
        ("mlp", {"dims": [3, "2"]}, "expected"),
        ("eval_mlp", {"dims": [3, 2]}, "in_channels: EvalMLP requires this argument"),
        ("siamese_concat_view", {"num_towers": "9"}, "expected int"),
    ],
)
def test_arguments_are_checked_by_the_signature(
    name: str, arguments: dict[str, Any], problem: str
) -> None:
    assert problem in "\n".join(argument_problems(HEADS.get(name), arguments, "PARAMS.0"))
