"""What a plan makes of a TRANSFORMS list, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchvision.transforms import ToPILImage

from sslengine.data.plan.draws import why_no_draw
from sslengine.data.plan.finish import CONVERSIONS, can_be_put_off
from sslengine.data.plan.plan import Drawn, OnImages, Pixels, Plan
from sslengine.data.transforms.pipeline import Step

DRAWN = "drawn, made together"
FALLS_BACK = "falls back to PIL"
PIXELS = "floats made here, in the worker"
ON_TENSORS = "on tensors"
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
    parts: list[Part] = []
    segment, tensors = 1, False
    for step in plan.steps[:-1]:
        what, why = _say(step, tensors)
        parts.append(Part(step.where, what, why, None if what == ON_TENSORS else segment))
        segment += what in (FALLS_BACK, PIXELS)
        made = getattr(step.transform, "transform", None)
        tensors = isinstance(step.transform, Pixels) or (tensors and type(made) is not ToPILImage)
    return parts + [Part(step.where, LATER) for step in plan.tail]


def _say(step: Step, tensors: bool) -> tuple[str, str]:
    transform = step.transform
    if isinstance(transform, Pixels):
        return PIXELS, ""
    if tensors:
        return ON_TENSORS, ""
    if isinstance(transform, Drawn):
        return DRAWN, ""
    assert isinstance(transform, OnImages)
    return FALLS_BACK, why_no_draw(transform.transform)


def why_floats(steps: Sequence[Step], image_keys: Sequence[str]) -> str:
    """Why a list whose plan has no tail does not give uint8."""
    numbers = [n for n, step in enumerate(steps) if type(step.transform) in CONVERSIONS]
    if not numbers:
        return "no ToTensor is among the TRANSFORMS"
    if not image_keys:
        return "the collator does not say that it only moves images (`only_moves`)"
    last, *rest = steps[numbers[-1] :]
    for step in (last, *rest):
        if step.indices:
            return f"{step.where} is for some images only"
    found = next(step for step in rest if not can_be_put_off(step.transform))
    return f"{found.where} follows ToTensor"
