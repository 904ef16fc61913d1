"""Write static SVG: it prints, and needs no script.

Colours come from classes of style.css: `k-` strokes and `f-` fills in the colour of a kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from markupsafe import Markup, escape

from sslengine.errors import readable

Point = tuple[float, float]
_KINDS = {"raw pixels": "pixels"} | {
    kind: kind for kind in ("trained", "untrained", "reference", "chance")
}


def name_kind(features: str) -> str:
    """Give the class in style.css of a kind of features."""
    return _KINDS.get(features, "other")


class Drawing:
    """Collect shapes in a box of so many pixels."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def svg(self, label: str, more: str = "") -> Markup:
        """Give the element; without a label it is hidden from screen readers."""
        said = f'role="img" aria-label="{escape(readable(label))}"' if label else "aria-hidden=true"
        box = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        return Markup(f"<svg {box} {said}{more}>{''.join(self._parts)}</svg>")

    @contextmanager
    def group(self, kind: str) -> Iterator[None]:
        """Put what is drawn within into a group of this class."""
        self._parts.append(f'<g class="{kind}">')
        yield
        self._parts.append("</g>")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        words = escape(readable(text))
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{words}</text>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        self._parts.append(f'<path class="{kind}" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')

    def path(self, points: Iterable[Point | None], kind: str) -> None:
        """Draw a line through points, with a gap at each None."""
        steps, command = [], "M"
        for point in points:
            if point:
                steps.append(f"{command}{point[0]:g} {point[1]:g}")
            command = "L" if point else "M"
        if steps:
            self._parts.append(f'<path class="{kind}" d="{"".join(steps)}"/>')

    def points(self, points: Iterable[Point], kind: str) -> None:
        """Draw many dots as one element; their size is the width of the stroke."""
        marks = "".join(f"M{x:g} {y:g}h0" for x, y in points)
        self._parts.append(f'<path class="dots {kind}" d="{marks}"/>')

    def dot(self, x: float, y: float, kind: str, size: float = 4.5) -> None:
        self._parts.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{size:g}"/>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        size = f'width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size}/>')

    def mark(self, kind: str, x: float, y: float) -> None:
        """Draw a score as a shape that is known without its colour."""
        if kind == "pixels":
            self.box(x - 4, y - 4, 8, 8, "f-pixels")
        elif kind == "untrained":
            self.line(x - 4, y - 4, x + 4, y + 4, "l k-untrained")
            self.line(x - 4, y + 4, x + 4, y - 4, "l k-untrained")
        elif kind == "reference":
            self.path([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], "f-reference")
        elif kind == "chance":
            self.line(x, y - 7, x, y + 7, "l k-chance")
        else:
            self.dot(x, y, f"f-{kind}")
