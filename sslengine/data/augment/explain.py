"""What a plan makes of a TRANSFORMS list, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchvision.transforms import ToPILImage

from sslengine.data.augment.drawing import why_no_draw
from sslengine.data.augment.finish import CONVERSIONS, can_be_put_off
from sslengine.data.augment.pipeline import Step
from sslengine.data.augment.plan import (
    Drawn,
    OnImages,
    Pixels,
    Plan,
    may_follow,
    takes_labels,
)

DRAWN = "drawn, made together"
FALLS_BACK = "falls back to PIL"
PIXELS = "floats made here, in the worker"
ON_TENSORS = "on tensors"
ON_LABELS = "on labels"
ON_BYTES = "on bytes, in the worker"
LATER = "after collate, on the device"


@dataclass(frozen=True)
class Part:
    where: str
    what: str
    why: str = ""
    # Pixels are made once in each segment, at its end.
    segment: int | None = None


def explain(plan: Plan) -> list[Part]:
    """One part for each entry of the list."""
    parts = [
        *_on_views(plan.steps[: len(plan.cut.on_views)]),
        *(Part(step.where, LATER) for step in plan.cut.waits),
        *(
            Part(step.where, ON_LABELS if takes_labels(step) else ON_BYTES)
            for step in plan.cut.on_bytes
        ),
    ]
    by_where = {part.where: part for part in parts}
    return [by_where[where] for where in plan.order]


def _on_views(steps: Sequence[Step]) -> Iterator[Part]:
    segment, tensors = 1, False
    for step in steps:
        what, why = _say(step, tensors)
        yield Part(step.where, what, why, None if what in (ON_TENSORS, ON_LABELS) else segment)
        segment += what in (FALLS_BACK, PIXELS)
        made = getattr(step.transform, "transform", None)
        tensors = isinstance(step.transform, Pixels) or (tensors and type(made) is not ToPILImage)


def _say(step: Step, tensors: bool) -> tuple[str, str]:
    transform = step.transform
    if takes_labels(step):
        return ON_LABELS, ""
    if isinstance(transform, Pixels):
        return PIXELS, ""
    if tensors:
        return ON_TENSORS, ""
    if isinstance(transform, Drawn):
        return DRAWN, ""
    assert isinstance(transform, OnImages)
    return FALLS_BACK, why_no_draw(transform.transform)


def why_floats(steps: Sequence[Step], image_keys: Sequence[str]) -> str:
    """Why a list in whose plan nothing waits does not give uint8."""
    numbers = [n for n, step in enumerate(steps) if type(step.transform) in CONVERSIONS]
    if not numbers:
        return "no ToTensor is among the TRANSFORMS"
    if not image_keys:
        return "the collator does not say that it only moves images (`only_moves`)"
    conversion, *behind = steps[numbers[-1] :]
    if conversion.indices:
        return f"{conversion.where} is for some images only"
    found = next(step for step in behind if not may_follow(step))
    if can_be_put_off(found.transform):
        return f"{found.where} is for some images only"
    return f"{found.where} follows ToTensor"
