from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.device.program import CODES, put_below, read_below
from sslengine.data.augment.backends.device.schedule import KINDS, Schedule, schedule
from sslengine.data.augment.operation import Operation
from tests.data.augment.backends.device.cases import drawn, noise

JITTER = (ops.Brightness, ops.Contrast, ops.Saturation)


def scheduled(programs: list[list[Operation]]) -> Schedule:
    pixels = noise(3, 8, 8)
    parcels: Tensor = torch.stack([put_below(pixels, each) for each in programs])
    return schedule(read_below(parcels))


def test_each_view_has_its_operations_in_its_order() -> None:
    programs = [drawn(seed, radius=3.0) for seed in range(50)]
    made = scheduled(programs)
    for view, program in enumerate(programs):
        kinds = [
            launch.kind % KINDS
            for launch in made.launches
            if view in made.which[launch.first : launch.last]
        ]
        assert kinds == [CODES[type(op)] for op in program]
        factors = np.float32([op.factor for op in program if isinstance(op, JITTER)])
        parameters = made.parameters[made.which == view].numpy()
        places = [number for number, op in enumerate(program) if isinstance(op, JITTER)]
        assert (parameters[places] == factors).all()


def test_no_view_is_twice_in_a_launch() -> None:
    made = scheduled([drawn(seed) for seed in range(20)])
    for launch in made.launches:
        which = made.which[launch.first : launch.last]
        assert len(which.unique()) == len(which) > 0


def test_what_comes_last_in_all_views_waits_for_all() -> None:
    jitter = [ops.Brightness(0.5), ops.Contrast(0.5)]
    made = scheduled([[*jitter, ops.Grey()], [ops.Grey()], [*jitter[::-1], ops.Grey()]])
    assert made.launches[-1].kind == CODES[ops.Grey]
    assert made.which[made.launches[-1].first :].tolist() == [0, 1, 2]


def test_blurs_go_together_with_those_that_reach_as_far() -> None:
    made = scheduled([[ops.Blur(radius)] for radius in (0.5, 1.9, 0.7, 5.0)])
    groups = {
        launch.kind // KINDS: made.which[launch.first : launch.last].tolist()
        for launch in made.launches
    }
    assert groups == {0: [0, 2], 1: [1], 4: [3]}


def test_nothing_to_do() -> None:
    made = scheduled([[], []])
    assert (made.launches, len(made.which), len(made.parameters)) == ([], 0, 0)
