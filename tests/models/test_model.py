from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.models.heads.mlp import PredictorHead
from sslengine.models.model import Model, build_pooling
from sslengine.models.options import FeatureEvalOptions, ResNetOptions
from sslengine.models.routing import Route, head_specs, plan_routes
from sslengine.models.sync_batchnorm import convert
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.resnet import ResNet
from tests.ranks import RankPool


class Means(Trunk):
    """Features that can be computed by hand: the mean of each channel, and twice that."""

    feature_names = ("twice", "mean")
    extra_inputs = ("mask",)

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.batches: list[tuple[int, ...]] = []

    def features(
        self, x: Tensor, wanted: Collection[str], mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        self.batches.append(tuple(x.shape))
        mean = (x if mask is None else x * mask).mean((2, 3))
        return {"mean": mean, "twice": 2 * mean}


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Two(nn.Module):
    """As prototypes do: a list of outputs."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x, 10 * x]


def model(heads: list[nn.Module], routes: list[Route], **options: Any) -> Model:
    return Model(Means(), nn.ModuleList(heads), routes, **options)


def crops(*sizes: int) -> list[Tensor]:
    """Crop i holds i + 1 everywhere; two images each."""
    return [torch.full((2, 3, size, size), 1.0 + index) for index, size in enumerate(sizes)]


X = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1).expand(2, 3, 4, 4)
MEAN = torch.tensor([[1.0, 2.0, 3.0]] * 2)


def check(outputs: list[Any], *expected: Tensor) -> None:
    assert isinstance(outputs, list)
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, value)


def test_no_heads_gives_features() -> None:
    check(model([], [Route(features=("twice", "mean"))])(X), 2 * MEAN, MEAN)


def test_chain() -> None:
    made = model([Times(3), Times(5)], [Route(heads=(0, 1), chained=True)])
    check(made(X), 15 * MEAN)


def test_several_heads_on_one_feature() -> None:
    check(model([Times(3), Times(5)], [Route(heads=(0, 1))])(X), 3 * MEAN, 5 * MEAN)


def test_a_head_for_each_feature() -> None:
    made = model([Times(3), Times(5)], [Route(features=("twice", "mean"), heads=(0, 1))])
    check(made(X), 6 * MEAN, 5 * MEAN)


def test_the_list_of_a_single_head_is_the_output() -> None:
    check(model([Two()], [Route(heads=(0,))])(X), MEAN, 10 * MEAN)
    several = model([Two(), Times(3)], [Route(heads=(0, 1))])(X)
    check(several[0], MEAN, 10 * MEAN)
    torch.testing.assert_close(several[1], 3 * MEAN)


def test_crops_of_one_size_go_together() -> None:
    made = model([Times(3)], [Route(heads=(0,))])
    outputs = made(crops(8, 8, 4, 4, 4))
    rows = torch.arange(1.0, 6.0).repeat_interleave(2)[:, None].expand(10, 3)
    check(outputs, 3 * rows)
    assert made.trunk.batches == [(4, 3, 8, 8), (6, 3, 4, 4)]


def test_only_neighbours_are_joined_so_that_the_order_stays() -> None:
    made = model([], [Route(features=("mean", "twice"))])
    mean, twice = made(crops(8, 4, 8))
    rows = torch.tensor([1.0, 1, 2, 2, 3, 3])[:, None].expand(6, 3)
    check([mean, twice], rows, 2 * rows)
    assert made.trunk.batches == [(2, 3, 8, 8), (2, 3, 4, 4), (2, 3, 8, 8)]


def test_single_pass_every_crop() -> None:
    made = model([Times(3)], [Route(heads=(0,))], single_pass_every_crop=True)
    together = model([Times(3)], [Route(heads=(0,))])
    check(made(crops(8, 8, 4)), *together(crops(8, 8, 4)))
    assert made.trunk.batches == [(2, 3, 8, 8), (2, 3, 8, 8), (2, 3, 4, 4)]


def siamese(**options: Any) -> Model:
    """With batch norms in trunk, projector and predictor; in double precision."""
    torch.manual_seed(0)
    trunk = ResNet(ResNetOptions(BLOCKS=[1, 1, 1, 1], DEPTH=18, WIDTH_MULTIPLIER=0.0625))
    head = PredictorHead([32, 8, 6], [6, 4, 6], use_bn_on_projection=True)
    return Model(trunk, nn.ModuleList([head]), [Route(heads=(0,))], **options).double()


def two_views(images: int) -> Tensor:
    """One after the other. The second has another mean, which batch norm would even out."""
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(2, images, 3, 32, 32, generator=generator, dtype=torch.float64)
    return (views + torch.tensor([0.0, 2.0]).view(2, 1, 1, 1, 1)).flatten(0, 1)


def test_views_apart_are_separate_forwards_one_after_the_other() -> None:
    apart, by_hand = siamese(views_apart=2), siamese()
    images = two_views(5)
    outputs = apart(images)
    first, second = by_hand(images[:5]), by_hand(images[5:])
    check(outputs, *(torch.cat(pair) for pair in zip(first, second, strict=True)))
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(apart.state_dict()[name], value, rtol=0, atol=1e-12)
    assert apart.trunk.bn1.num_batches_tracked == 2
    sum(each.square().sum() for each in outputs).backward()
    sum(each.square().sum() for each in (*first, *second)).backward()
    for got, expected in zip(apart.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad)
    together = siamese()(images)
    assert (outputs[1] - together[1]).abs().max() > 0.1


def test_in_eval_mode_views_go_together() -> None:
    apart, plain = siamese(views_apart=2).eval(), siamese().eval()
    for rows in (6, 7, 1):  # of a test set with a single view as well
        check(apart(two_views(4)[:rows]), *plain(two_views(4)[:rows]))


def test_crops_apart_pass_the_heads_apart_as_well() -> None:
    apart, by_hand = siamese(views_apart=3), siamese()
    crops = [*two_views(4).chunk(2), two_views(2)[..., :16, :16]]
    outputs, singles = apart(crops), [by_hand(crop) for crop in crops]
    check(outputs, *(torch.cat(parts) for parts in zip(*singles, strict=True)))
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(apart.state_dict()[name], value, rtol=0, atol=1e-12)


def test_the_outputs_of_heads_that_give_lists_are_joined() -> None:
    outputs = model([Two(), Times(3)], [Route(heads=(0, 1))], views_apart=2)(X)
    check(outputs[0], MEAN, 10 * MEAN)
    torch.testing.assert_close(outputs[1], 3 * MEAN)


def test_rows_that_are_no_views() -> None:
    with pytest.raises(TrainingError, match=r"VIEWS_APART: a batch of 2 views .* 7 rows"):
        siamese(views_apart=2)(two_views(4)[:7])


def _of_rank(images: int) -> dict[str, Any]:
    """Synchronised, DDP around it; the gradients of the sum over ranks."""
    share = two_views(images).unflatten(0, (2, -1)).chunk(world_size(), dim=1)[rank()].flatten(0, 1)
    wrapped = DistributedDataParallel(convert(siamese(views_apart=2), None))
    outputs = wrapped(share)
    sum(each.square().sum() for each in outputs).backward()
    return {
        "outputs": [each.detach().unflatten(0, (2, -1)) for each in outputs],
        "buffers": dict(wrapped.module.named_buffers()),
        "gradients": [each.grad * world_size() for each in wrapped.parameters()],
    }


def test_over_ranks_a_view_is_the_batch_of_all_ranks(two_ranks: RankPool) -> None:
    alone = siamese(views_apart=2)
    outputs = alone(two_views(6))
    sum(each.square().sum() for each in outputs).backward()
    results = two_ranks.run(_of_rank, 6)
    for index, expected in enumerate(outputs):
        got = torch.cat([each["outputs"][index] for each in results], dim=1).flatten(0, 1)
        torch.testing.assert_close(got, expected.detach())
    for each in results:
        for name, buffer in alone.named_buffers():
            torch.testing.assert_close(each["buffers"][name], buffer, rtol=1e-9, atol=1e-12)
        for gradient, parameter in zip(each["gradients"], alone.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=1e-9)


PIRL = [Route("patches", ("mean",), (0,)), Route("images", ("twice",), (1,))]


def test_several_inputs() -> None:
    made = model([Times(3), Times(5)], PIRL)
    check(made({"images": X, "patches": 7 * X}), 21 * MEAN, 10 * MEAN)
    check(made({"images": X}), 10 * MEAN)
    lists = model([Two(), Times(5)], PIRL)({"images": X, "patches": X})
    check(lists[0], MEAN, 10 * MEAN)
    check(
        made({"images": crops(8, 4), "patches": X})[1:],
        10 * torch.tensor([[1.0] * 3, [1.0] * 3, [2.0] * 3, [2.0] * 3]),
    )


def test_companions_of_an_input_reach_the_trunk() -> None:
    made = model([], [Route("images", (), (), additional_keys=("mask",))])
    check(made({"images": X, "mask": torch.tensor(0.5)}), 0.5 * MEAN)
    check(made({"images": X}), MEAN)
    with pytest.raises(ConfigError, match="additional_keys require crops of a single size"):
        made({"images": crops(8, 4), "mask": torch.tensor(0.5)})


def test_channels_can_be_flipped() -> None:
    made = model([], [Route()], flip_channels=True)
    check(made(X), MEAN.flip(1))
    check(made([X, X]), torch.cat([MEAN, MEAN]).flip(1))


def test_frozen_parts_keep_weights_and_statistics() -> None:
    made = model([Times(3), nn.BatchNorm1d(3)], [Route(heads=(0, 1), chained=True)])
    made.freeze("trunk")
    made.train()
    assert (made.training, made.trunk.training, made.trunk.norm.training) == (True, False, False)
    assert made.heads[1].training
    assert [p.requires_grad for p in made.trunk.parameters()] == [False, False]
    assert all(p.requires_grad for p in made.heads.parameters())
    made.freeze("trunk", "heads")
    assert not made.train().heads[1].training
    assert not any(p.requires_grad for p in made.parameters())
    assert made.eval().train().training


def test_wrong_names_are_told_when_the_model_is_made() -> None:
    routes = plan_routes([], [], [["images", ["maen"]]], False, "config.MODEL.")
    with pytest.raises(
        ConfigError, match=r"MAPPING\.0: Means has no feature 'maen'\. Did you mean"
    ):
        model([], routes)


def test_a_batch_that_does_not_fit_the_mapping() -> None:
    mapped = model([Times(3), Times(5)], PIRL)
    with pytest.raises(
        ConfigError, match="expects the inputs images, patches, but the batch has one"
    ):
        mapped(X)
    with pytest.raises(ConfigError, match="no head for any of the inputs photos; it names images"):
        mapped({"photos": X})
    with pytest.raises(ConfigError, match="no head for any of the inputs a, b; it names none"):
        model([], [Route()])({"a": X, "b": X})


def test_a_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the host waited for a tensor")

    options = ResNetOptions(DEPTH=18, WIDTH_MULTIPLIER=0.125, STEM="small")
    made = Model(ResNet(options), nn.ModuleList([Times(3)]), [Route(heads=(0,))])
    made.trunk.checkpoint_activations()
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(Tensor, name, refuse)
    made([torch.randn(2, 3, 16, 16), torch.randn(2, 3, 8, 8)])[0].sum().backward()


# ---- Features, heads and inputs: which reads which, and how features are pooled


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
         r"no pooling 'AvgPol2d'\. Known: "),
        (([A], pooled("res5"), [["a", []]]), "MULTI_INPUT_HEAD_MAPPING: cannot be combined"),
        (([A], [], [["a", []], ["a", []]]), r"MAPPING\.1: the input 'a' is mapped twice"),
        (([A], [], [["a", ["res4", "res5"]]]), r"MAPPING\.0: a head reads one feature"),
        (([A], [], [["a", {"head_index": 1}]]),
         r"MAPPING\.0\.head_index: there are 1 heads; got 1"),
        (([A], [], [["a", {"feat_name": []}]]),
         r"MAPPING\.0\.feat_name: unknown key\. Known: "),
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


X_ROUTING = torch.arange(2 * 3 * 4 * 4, dtype=torch.float64).view(2, 3, 4, 4)
BLOCKS = X_ROUTING.view(
    2, 3, 2, 2, 2, 2
)  # N, C, row of blocks, row in block, column of blocks, column


@pytest.mark.parametrize(
    ("operation", "arguments", "expected"),
    [
        ("AdaptiveAvgPool2d", [[1, 1]], X_ROUTING.mean((2, 3), keepdim=True)),
        ("AdaptiveMaxPool2d", [1], X_ROUTING.amax((2, 3), keepdim=True)),
        ("AvgPool2d", [[2, 2], 2, 0], BLOCKS.mean((3, 5))),
        ("MaxPool2d", [2], BLOCKS.amax((3, 5))),
        ("Identity", [], X_ROUTING),
    ],
)
def test_operations(operation: str, arguments: list[Any], expected: torch.Tensor) -> None:
    (pooled,) = pooling([["res5", [operation, arguments]]], flatten=False)([X_ROUTING])
    torch.testing.assert_close(pooled, expected)


def test_each_feature_has_its_own_and_may_become_flat() -> None:
    made = pooling([["a", ["Identity", []]], ["b", ["AvgPool2d", [4]]]])
    first, second = made([X_ROUTING, X_ROUTING + 1])
    assert first.shape == (2, 48)
    torch.testing.assert_close(second, X_ROUTING.mean((2, 3)) + 1)
    assert not made.state_dict()


def test_arguments_that_the_operation_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"OPS_MAP\.0: AvgPool2d\(\): .*kernel_size"):
        pooling([["res5", ["AvgPool2d", []]]])
