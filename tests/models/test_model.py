from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.models.heads.predictor import PredictorHead
from sslengine.models.model import Model
from sslengine.models.options import CompileOptions, ResNetOptions
from sslengine.models.parts import compile_forward
from sslengine.models.routing import Route, plan_routes
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


def test_compiled_parts_run_once_for_each_view() -> None:
    apart, plain = siamese(views_apart=2), siamese(views_apart=2)
    compile_forward(apart.heads[0], CompileOptions(USE_COMPILE=True, BACKEND="eager"))
    check(apart(two_views(4)), *plain(two_views(4)))


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


def test_pooling_stands_between_trunk_and_heads() -> None:
    class AddOne(nn.Module):
        def forward(self, features: list[Tensor]) -> list[Tensor]:
            return [feature + 1 for feature in features]

    check(model([Times(3)], [Route(heads=(0,))], pooling=AddOne())(X), 3 * (MEAN + 1))


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
    with pytest.raises(
        ConfigError, match="Means takes no input 'maks' in addition to the images. Did you"
    ):
        model([], [Route("images", additional_keys=("maks",))])


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
