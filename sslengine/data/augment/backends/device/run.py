"""A schedule's kernels on the pixels of a batch."""

from __future__ import annotations

from torch import Tensor

from sslengine.data.augment.backends.device.program import KERNELS
from sslengine.data.augment.backends.device.schedule import KINDS, Schedule
from sslengine.data.augment.operation import Given

# What a kernel makes on the way takes some hundred bytes a pixel: so many values at a time.
VALUES_AT_ONCE = 1 << 23


def run(schedule: Schedule, pixels: Tensor) -> None:
    """Change the pixels, uint8 [n, 3, height, width], in place. Both are on the device."""
    at_once = max(1, VALUES_AT_ONCE // max(1, pixels[:1].numel()))
    for kind, first, last in schedule.launches:
        number, code = divmod(kind, KINDS)
        kernel = KERNELS[code - 1].on_device
        for start in range(first, last, at_once):
            part = slice(start, min(start + at_once, last))
            which = schedule.which[part]
            before = pixels.index_select(0, which)
            given = Given(schedule.parameters[part], number, schedule.tables.get(code))
            after = kernel(before, given)
            pixels.index_copy_(0, which, after)
