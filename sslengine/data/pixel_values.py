"""PIXEL_RANGE and TRANSPARENT: what becomes black and white, and what is seen through an image.

Which values become black and white where an image of more than 8 bits is brought to 8:

    PIXEL_RANGE: [0, 4095]      these
    PIXEL_RANGE: [1%, 99%]      those that such shares of the image's values do not exceed
    PIXEL_RANGE: image          the least and the greatest of the image
    PIXEL_RANGE: type           the least and the greatest that its type of whole numbers has

In between values are spread evenly, and rounded; beyond, they are black or white.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # options are read without numpy, which takes its time
    import numpy as np
    from numpy.typing import NDArray

Colour = tuple[int, int, int]

# So many are computed at a time: in float64 all values would take eight times the image's memory.
ROWS = 64
RANGES = "[low, high] (values), [1%, 99%] (shares of an image's values), image, or type"
WHITE = (255, 255, 255)
COLOURS = (
    "white, black, the name of another colour, '#rrggbb', [red, green, blue] up to 255, or drop"
)


@dataclass(frozen=True)
class PixelRange:
    kind: str  # fixed, percentile, image, type
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def parse(cls, given: Any) -> PixelRange | None:
        """Return None where nothing is given. Raises ValueError."""
        match given:
            case "" | None:
                return None
            case "image" | "type":
                return cls(given)
            case [str(low), str(high)] if low.endswith("%") and high.endswith("%"):
                made = cls("percentile", float(low[:-1]), float(high[:-1]))
                if not 0 <= made.low < made.high <= 100:
                    raise ValueError(f"expected two shares from 0% to 100% in order, got {given}.")
                return made
            case [int() | float() as low, int() | float() as high] if low < high:
                return cls("fixed", float(low), float(high))
        raise ValueError(f"expected {RANGES}; got {given!r}.")

    @property
    def limits(self) -> tuple[float, float] | None:
        """Give black and white, if they are the same for all images."""
        return (self.low, self.high) if self.kind == "fixed" else None

    def to_8_bits(self, values: NDArray[Any], decide: NDArray[Any]) -> NDArray[np.uint8]:
        """Spread the values. decide: those of them that determine what is black and white."""
        import numpy as np

        low, high = self._find_limits(decide if decide.size else values)
        made = np.empty(values.shape, np.uint8)
        for first in range(0, len(values), ROWS):
            rows = slice(first, first + ROWS)
            numbers = np.nan_to_num(np.clip(values[rows].astype(np.float64), low, high) - low)
            made[rows] = np.rint(numbers * 255 / ((high - low) or 1.0))
        return made

    def _find_limits(self, values: NDArray[Any]) -> tuple[float, float]:
        import numpy as np

        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError("some of its values are not finite")
        if self.kind == "fixed":
            return self.low, self.high
        if self.kind == "image":
            return float(values.min()), float(values.max())
        if self.kind == "percentile":
            low, high = np.percentile(values, [self.low, self.high]).tolist()
            return low, high
        if values.dtype.kind not in "iu":
            raise ValueError(
                f"PIXEL_RANGE is type, and {values.dtype} has no greatest value for white"
            )
        limits = np.iinfo(values.dtype)
        return float(limits.min), float(limits.max)


def parse_colour(given: Any) -> Colour | None:
    """Return the colour, None if transparency is dropped; ValueError if it is neither."""
    match given:
        case "drop":
            return None
        case "white":
            return WHITE
        case str(name):
            from PIL import ImageColor

            with suppress(ValueError):
                red, green, blue, *alpha = ImageColor.getrgb(name)
                if not alpha:
                    return red, green, blue
        case [int(red), int(green), int(blue)] if min(given) >= 0 and max(given) <= 255:
            return red, green, blue
    raise ValueError(f"expected {COLOURS}; got {given!r}.")
