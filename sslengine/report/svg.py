"""Write the elements of static SVG: it prints, and needs no script.

Colours come from classes of style.css: `k-` strokes and `f-` fills in the colour of a kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from sslengine.errors import readable

_KINDS = {"raw pixels": "pixels", "trained": "trained", "untrained": "untrained"}
Point = tuple[float, float]


def name_kind(features: str) -> str:
    """Give the class in style.css of a kind of features."""
    return _KINDS.get(features, features if features in ("reference", "chance") else "other")


def draw_text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(readable(text))}</text>'


def draw_line(start: Point, end: Point, kind: str) -> str:
    (x, y), (to_x, to_y) = start, end
    return f'<path class="{kind}" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>'


def draw_path(points: Iterable[Point | None], kind: str) -> str:
    """Draw a line through points, with a gap at each None."""
    steps, command = [], "M"
    for point in points:
        if point is None:
            command = "M"
            continue
        steps.append(f"{command}{point[0]:g} {point[1]:g}")
        command = "L"
    return f'<path class="{kind}" d="{"".join(steps)}"/>' if steps else ""


def draw_dots(points: Iterable[Point], kind: str) -> str:
    marks = "".join(f"M{x:g} {y:g}h0" for x, y in points)
    return f'<path class="dots {kind}" d="{marks}"/>' if marks else ""


def draw_mark(kind: str, x: float, y: float, size: float = 4.5) -> str:
    """Draw a score as a shape that can be told without its colour."""
    if kind in ("pixels", "reference"):
        turn = f' transform="rotate(45 {x:g} {y:g})"' if kind == "reference" else ""
        side = 2 * size - 1
        return (
            f'<rect class="f-{kind}" x="{x - side / 2:g}" y="{y - side / 2:g}" '
            f'width="{side:g}" height="{side:g}"{turn}/>'
        )
    if kind == "untrained":
        arm = size - 0.5
        falling = draw_line((x - arm, y - arm), (x + arm, y + arm), "l k-untrained")
        return falling + draw_line((x - arm, y + arm), (x + arm, y - arm), "l k-untrained")
    if kind == "chance" or kind.startswith("line-"):
        return draw_line((x, y - 7), (x, y + 7), f"l k-{kind.removeprefix('line-')}")
    return draw_dot(x, y, f"f-{kind}", size)


def draw_dot(x: float, y: float, kind: str, size: float = 4.5) -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{size:g}"/>'


def draw_box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def draw_frame(
    width: float, height: float, label: str, parts: Iterable[str], more: str = ""
) -> Markup:
    said = f'role="img" aria-label="{escape(readable(label))}"' if label else 'aria-hidden="true"'
    body = "".join(parts)
    return Markup(f'<svg viewBox="0 0 {width:g} {height:g}" {said}{more}>{body}</svg>')
