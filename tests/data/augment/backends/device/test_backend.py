from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map_only

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.base import Backend, build_backend
from sslengine.data.augment.backends.device.backend import divided
from sslengine.data.augment.backends.device.program import SLOTS
from sslengine.data.augment.backends.pil import PilBackend
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.plan import Plan
from sslengine.data.augment.view import Source
from sslengine.data.batch.collators import image_keys, multicrop_collator, simclr_collator
from sslengine.data.loading.device_prefetch import on_device
from sslengine.errors import DataError
from tests.data.augment.backends.device.cases import noise
from tests.data.augment.lists import LISTS
from tests.data.augment.test_plan import COLLATORS, WHERE, expect_same, finished, samples

NOT_RGB = ("grey", "floats of one's own")
IMAGES = ("images", "empty")
CROP = ops.Crop(1, 2, 10, 10, to=(8, 8))
FLIP, GREY = ops.FlipLeftRight(), ops.Grey()


@pytest.fixture
def backend() -> Backend:
    """Whatever is installed here."""
    made: Any = pickle.loads(pickle.dumps(build_backend("device")))
    made.worker = build_backend("pil")
    return made


@pytest.mark.parametrize("name", [name for name in LISTS if name not in (*NOT_RGB, *IMAGES)])
def test_a_batch_that_has_arrived_is_the_lists_batch(name: str, backend: Backend) -> None:
    """To the bit: worker and device together do what Pillow does."""
    pipeline = Pipeline(LISTS[name], WHERE)
    collate: Any = COLLATORS.get(name, multicrop_collator)
    plan = Plan(pipeline, backend, image_keys(collate))
    expect_same(finished(plan, collate(samples(plan))), collate(samples(pipeline)))


@pytest.mark.parametrize("name", NOT_RGB)
def test_what_is_not_rgb_is_refused(name: str, backend: Backend) -> None:
    plan = Plan(Pipeline(LISTS[name], WHERE), backend, ("data",))
    with pytest.raises(DataError, match="expected an RGB image.*AUGMENT_BACKEND=pil"):
        samples(plan)


@pytest.mark.parametrize("name", ["byol", "pirl", "tables", "ibot"])
def test_colour_and_blur_are_not_done_in_the_worker(name: str, backend: Any) -> None:
    class Watched(PilBackend):
        seen: ClassVar[list[Any]] = []

        def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
            self.seen.append(list(ops))
            return super().tensor(source, ops)

    backend.worker = Watched()
    samples(Plan(Pipeline(LISTS[name], WHERE), backend, ("data",)))
    kinds = {type(op) for given in Watched.seen for op in given}
    assert ops.Crop in kinds <= {ops.Crop, ops.FlipLeftRight}


def test_a_loader_worker_is_told_what_its_part_needs(backend: Any) -> None:
    assert backend.modules == (
        "sslengine.data.augment.backends.device.backend",
        "sslengine.data.augment.backends.pil",
    )


def test_views_in_a_batch_do_not_depend_on_each_other(backend: Backend) -> None:
    plan = Plan(Pipeline(LISTS["simclr"], WHERE), backend, ("data",))
    made = samples(plan)
    together = finished(plan, simclr_collator(made))["data"][0]
    alone = [finished(plan, simclr_collator([sample]))["data"][0] for sample in made]
    assert torch.equal(together, torch.stack(alone, 1).flatten(0, 1))


def test_before_a_crop_all_is_done_in_the_worker() -> None:
    blur = ops.Blur(1.0)
    assert divided([CROP, GREY, CROP, blur]) == ([CROP, GREY, CROP], [blur])
    assert divided([GREY, CROP]) == ([GREY, CROP], [])
    assert divided([CROP]) == ([CROP], [])
    assert divided([]) == ([], [])


def test_a_flip_comes_before_what_is_left() -> None:
    blur = ops.Blur(1.0)
    assert divided([CROP, blur, FLIP, GREY, FLIP]) == ([CROP, FLIP, FLIP], [blur, GREY])


def test_a_subclass_of_an_operation_is_another_operation() -> None:
    class Softer(ops.Blur):
        pass

    assert divided([CROP, Softer(1.0), GREY]) == ([CROP, Softer(1.0)], [GREY])


def test_what_does_not_fit_below_is_done_in_the_worker(backend: Backend) -> None:
    many = [ops.Brightness(1 + number / 100) for number in range(SLOTS + 3)]
    now, later = divided([CROP, *many])
    assert (now, later) == ([CROP, *many[:3]], many[3:])
    source = Image.fromarray(noise(12, 14, 3).numpy())
    parcel = backend.parcel(source, [CROP, *many])
    (made,) = backend.finished(backend.opened([parcel[None]]))
    assert torch.equal(made[0], backend.tensor(source, [CROP, *many]))


def test_the_parcels_stay_as_they_are(backend: Backend) -> None:
    source = Image.fromarray(noise(12, 14, 3).numpy())
    parcels = torch.stack([backend.parcel(source, [CROP, GREY]) for _ in range(2)])
    before = parcels.clone()
    backend.finished(backend.opened([parcels]))
    assert torch.equal(parcels, before)


@pytest.mark.parametrize("name", ["simclr", "dino", "pirl", "tables"])
def test_nothing_on_the_device_hangs_on_values(name: str, backend: Backend) -> None:
    """Tensors without values: what would have to wait for them fails."""
    plan = Plan(Pipeline(LISTS[name], WHERE), backend, ("data", "images", "patches"))
    batch = COLLATORS.get(name, multicrop_collator)(samples(plan))
    expected, nowhere = finished(plan, batch), torch.device("meta")
    (made,) = on_device([batch], nowhere, overlap=False, arrival=plan.arrival(nowhere))
    shapes = [tree_map_only(Tensor, lambda image: image.shape, each) for each in (made, expected)]
    assert shapes[0] == shapes[1]


def test_parcels_of_several_sizes_come_back_in_their_order(backend: Backend) -> None:
    sides, todo = [9, 30, 9, 5, 30], [[GREY], [], [ops.Blur(1.0)], [ops.Solarize(9)], [GREY]]
    sources = [Image.fromarray(noise(side, side, 3, seed=side).numpy()) for side in sides]
    parcels = [backend.parcel(*each)[None] for each in zip(sources, todo, strict=True)]
    opened = backend.opened(parcels)
    assert [group.numbers for group in opened] == [[0, 2], [1, 4], [3]]
    made = backend.finished(opened)
    for image, source, operations in zip(made, sources, todo, strict=True):
        assert torch.equal(image[0], backend.tensor(source, operations))


def test_what_is_left_to_the_device_is_told(backend: Backend) -> None:
    source = Image.fromarray(noise(12, 14, 3).numpy())
    some = [[CROP, GREY, ops.Blur(1.0)], [CROP, GREY], [GREY, CROP]]
    told = backend.left_to_the_device([backend.parcel(source, each) for each in some])
    assert told.startswith("left to the device, of a view on average: Grey 0.67, Blur 0.33; what")
    told = backend.left_to_the_device([backend.parcel(source, [GREY, CROP])])
    assert "on average: nothing; what comes before a crop" in told
