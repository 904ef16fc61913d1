from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.data.augment.backends.device import run as module
from sslengine.data.augment.backends.device.program import height_of_pixels, put_below, read_below
from sslengine.data.augment.backends.device.run import run
from sslengine.data.augment.backends.device.schedule import schedule
from sslengine.data.augment.operation import Operation
from tests.data.augment.backends.device.cases import by_pillow, drawn, noise


def made(pixels: Tensor, programs: list[list[Operation]]) -> Tensor:
    parcels = torch.stack([put_below(*each) for each in zip(pixels, programs, strict=True)])
    after = parcels[:, :, : height_of_pixels(parcels)].contiguous()
    run(schedule(read_below(parcels)), after)
    return after


PROGRAMS = [drawn(seed, radius=3.0) for seed in range(24)]


def test_every_view_is_what_pillow_makes_of_it() -> None:
    pixels = noise(len(PROGRAMS), 3, 20, 30)
    for image, program, after in zip(pixels, PROGRAMS, made(pixels, PROGRAMS), strict=True):
        assert torch.equal(after, by_pillow(image, program)), program


def test_a_view_does_not_depend_on_its_neighbours() -> None:
    pixels = noise(len(PROGRAMS), 3, 16, 16)
    together = made(pixels, PROGRAMS)
    alone = [made(image[None], [program])[0] for image, program in zip(pixels, PROGRAMS)]
    assert torch.equal(together, torch.stack(alone))
    backwards = made(pixels.flip(0), PROGRAMS[::-1]).flip(0)
    assert torch.equal(together, backwards)


def test_groups_are_cut_into_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(len(PROGRAMS), 3, 16, 16)
    whole = made(pixels, PROGRAMS)
    for values in (1, 3 * 16 * 16 * 5):
        monkeypatch.setattr(module, "VALUES_AT_ONCE", values)
        assert torch.equal(made(pixels, PROGRAMS), whole)
