"""A schedule's kernels on the pixels of a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sslengine.data.plan import ops
from sslengine.data.plan.device import colour, levels
from sslengine.data.plan.device.blur import blur
from sslengine.data.plan.device.program import CODES
from sslengine.data.plan.device.schedule import BLUR, Schedule
from sslengine.data.plan.device.sharpness import sharpness

# What a kernel makes on the way takes some hundred bytes a pixel: so many values at a time.
VALUES_AT_ONCE = 1 << 23

_KERNELS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    CODES[ops.Brightness]: colour.brightness,
    CODES[ops.Contrast]: colour.contrast,
    CODES[ops.Saturation]: colour.saturation,
    CODES[ops.Grey]: colour.grey,
    CODES[ops.Solarize]: colour.solarize,
    CODES[ops.Posterize]: levels.posterize,
    CODES[ops.Invert]: levels.invert,
    CODES[ops.AutoContrast]: levels.autocontrast,
    CODES[ops.Equalize]: levels.equalize,
    CODES[ops.Sharpness]: sharpness,
}


def run(schedule: Schedule, pixels: Tensor) -> None:
    """Change the pixels, uint8 [n, 3, height, width], in place. Both are on the device."""
    at_once = max(1, VALUES_AT_ONCE // max(1, pixels[:1].numel()))
    for kind, first, last in schedule.launches:
        for start in range(first, last, at_once):
            part = slice(start, min(start + at_once, last))
            which = schedule.which[part]
            before = pixels.index_select(0, which)
            after = _after(kind, before, schedule.parameters[part], schedule.falls_short)
            pixels.index_copy_(0, which, after)


def _after(kind: int, pixels: Tensor, parameter: Tensor, falls_short: Tensor) -> Tensor:
    if kind >= BLUR:
        return blur(pixels, parameter, reach=kind - BLUR)
    if kind == CODES[ops.Hue]:
        return colour.hue(pixels, parameter, falls_short)
    return _KERNELS[kind](pixels, parameter)
