"""Features, heads and inputs: which reads which, and how features are pooled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import ConfigError
from sslengine.models.model import build_pooling
from sslengine.models.options import FeatureEvalOptions
from sslengine.models.routing import head_specs, plan_routes, pool_specs

A = ["mlp", {"dims": [8, 4]}]
B = ["mlp", {"dims": [4, 2]}]


def pooled(*names: str) -> list[Any]:
    return [[name, ["Identity", []]] for name in names]


def plan(
    heads: list[Any],
    features: tuple[str, ...] = (),
    mapping: list[Any] | None = None,
    trunk_only: bool = False,
) -> list[tuple[Any, ...]]:
    routes = plan_routes(heads, pooled(*features), mapping or [], trunk_only)
    return [(r.key, r.features, r.heads, r.chained, r.additional_keys) for r in routes]


@pytest.mark.parametrize(
    ("heads", "features", "expected"),
    [
        ([], (), ("", (), (), False, ())),
        ([A], (), ("", (), (0,), False, ())),
        ([A, B], (), ("", (), (0, 1), True, ())),
        ([A, B], ("res5",), ("", ("res5",), (0, 1), True, ())),
        ([[A, B]], (), ("", (), (0,), False, ())),
        ([[A], [A, B]], (), ("", (), (0, 1), False, ())),
        ([A, B], ("res4", "res5"), ("", ("res4", "res5"), (0, 1), False, ())),
        ([A, [A, B]], ("res5", "res5"), ("", ("res5", "res5"), (0, 1), False, ())),
        ([], ("res4", "res5"), ("", ("res4", "res5"), (), False, ())),
    ],
)
def test_single_input(heads: list[Any], features: tuple[str, ...], expected: Any) -> None:
    assert plan(heads, features) == [expected]


def test_trunk_only_leaves_the_heads_out() -> None:
    assert plan([A], ("res4", "res5"), trunk_only=True) == [("", ("res4", "res5"), (), False, ())]
    mapping = [["images", ["res4", "res5"]]]
    assert plan([A], mapping=mapping, trunk_only=True) == [
        ("images", ("res4", "res5"), (), False, ())
    ]


def test_mapping_in_both_forms() -> None:
    mapping = [["patches", ["flatten"]], ["images", ["res5"]]]
    expected = [
        ("patches", ("flatten",), (0,), False, ()),
        ("images", ("res5",), (1,), False, ()),
    ]
    assert plan([[A, B], [A]], mapping=mapping) == expected
    mapping = [
        ["patches", {"feat_names": ["flatten"], "head_index": 0}],
        ["images", {"feat_names": ["res5"]}],
    ]
    assert plan([[A, B], [A]], mapping=mapping) == expected


def test_inputs_may_share_a_head_and_have_companions() -> None:
    mapping = [
        ["big", {"feat_names": ["lastBLK"], "additional_keys": ["mask"]}],
        ["small", ["lastCLS"]],
    ]
    assert plan([A], mapping=mapping) == [
        ("big", ("lastBLK",), (0,), False, ("mask",)),
        ("small", ("lastCLS",), (0,), False, ()),
    ]


def test_what_follows_the_arguments_of_a_head_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two YAML files of VISSL have such an entry; VISSL reads the first two things of it."""
    entry = [[["mlp", {"dims": [7, 5]}, {"use_relu": True}]]]
    for _ in range(2):
        (spec,) = head_specs(entry, "config.MODEL.HEAD.PARAMS")
        assert spec.modules == (("mlp", {"dims": [7, 5]}),)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "config.MODEL.HEAD.PARAMS.0: {'use_relu': True} follows" in record.message


def test_pooling() -> None:
    (spec,) = pool_specs([["res5", ["AvgPool2d", [[6, 6], 1, 0]]]], "MAP")
    assert (spec.feature, spec.operation, spec.arguments) == ("res5", "AvgPool2d", ([6, 6], 1, 0))


MAP_ENTRY = r"expected \[\"feature\", \[\"pooling\", \[its arguments\]\]\]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([A, B, A], pooled("res4", "res5"), []), r"HEAD\.PARAMS: 3 heads for the 2 features"),
        (([["mlp"], ["mlp", 3]], [], []), r"HEAD\.PARAMS\.1: expected \[\"name\""),
        (([[]], [], []), r"HEAD\.PARAMS\.0: expected"),
        ((["mlp", {"dims": [8, 4]}], [], []), r"HEAD\.PARAMS\.1: expected"),
        (([A], [["res5", "Identity"]], []), rf"MAP\.0: {MAP_ENTRY}"),
        (([A], [["res5", ["AvgPol2d", []]]], []),
         r"no pooling 'AvgPol2d'\. Did you mean 'AvgPool2d'"),
        (([A], pooled("res5"), [["a", []]]), "MULTI_INPUT_HEAD_MAPPING: cannot be combined"),
        (([A], [], [["a", []], ["a", []]]), r"MAPPING\.1: the input 'a' is mapped twice"),
        (([A], [], [["a", ["res4", "res5"]]]), r"MAPPING\.0: a head reads one feature"),
        (([A], [], [["a", {"head_index": 1}]]),
         r"MAPPING\.0\.head_index: there are 1 heads; got 1"),
        (([A], [], [["a", {"feat_name": []}]]),
         r"MAPPING\.0\.feat_name: unknown key\. Did you mean"),
        (([A], [], ["a"]), r"MAPPING\.0: expected"),
        (([A, B], [], [["a", []]]), r"HEAD\.PARAMS\.1: no input of MULTI_INPUT_HEAD_MAPPING uses"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        plan_routes(*arguments, trunk_only=False, where="config.MODEL.")
    assert str(error.value).startswith("config.MODEL.")


# ---- features


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


def test_arguments_that_the_operation_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"OPS_MAP\.0: AvgPool2d\(\): .*kernel_size"):
        pooling([["res5", ["AvgPool2d", []]]])
