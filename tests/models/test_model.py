from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.model import Model
from sslengine.models.options import ResNetOptions
from sslengine.models.routing import Route, plan_routes
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.resnet import ResNet


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
    with pytest.raises(ConfigError, match="additional_keys need crops of a single size"):
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
    with pytest.raises(ConfigError, match="Means takes no input 'maks' beside the images. Did you"):
        model([], [Route("images", additional_keys=("maks",))])


def test_a_batch_that_does_not_fit_the_mapping() -> None:
    mapped = model([Times(3), Times(5)], PIRL)
    with pytest.raises(ConfigError, match="expects the inputs images, patches, the batch has one"):
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
    made.trunk.checkpoint_activations(2)
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(Tensor, name, refuse)
    made([torch.randn(2, 3, 16, 16), torch.randn(2, 3, 8, 8)])[0].sum().backward()
