"""Write what a page shows as JSON, for programs that read the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from markupsafe import Markup

from sslengine.report.content import Comparison, Content, Thumbs, Views

# They are in the page already, and are no numbers.
_PICTURES: Mapping[type, set[str]] = {Thumbs: {"sprite"}, Views: {"original", "views"}}


def encode_data(data: Content | Comparison) -> Markup:
    """Write content as JSON that can stand within a script element.

    Pictures, and numbers that are not finite, are null.
    """
    text = json.dumps(_simplify(data), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _simplify(part: Any) -> Any:
    if is_dataclass(part) and not isinstance(part, type):
        shown = (each.name for each in fields(part))
        left_out = _PICTURES.get(type(part), set())
        return {
            name: None if name in left_out else _simplify(getattr(part, name)) for name in shown
        }
    if isinstance(part, Mapping):
        return {str(key): _simplify(value) for key, value in part.items()}
    if isinstance(part, str) or part is None:
        return part
    if isinstance(part, Integral):
        return int(part)
    if isinstance(part, Real):
        return float(part) if math.isfinite(part) else None
    return [_simplify(each) for each in part] if isinstance(part, Sequence) else str(part)
