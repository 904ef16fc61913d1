"""What is seen through the transparent pixels of an image.

    TRANSPARENT: white          this colour, also black, #2060a0, or [32, 96, 160]
    TRANSPARENT: drop           nothing: the colours that the file has below its transparency

A pixel of the colour c and the opacity a becomes c * a + colour * (1 - a), rounded.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # options are read without numpy and Pillow, which take their time
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

Colour = tuple[int, int, int]
WHITE = (255, 255, 255)
FORMS = "white, black, the name of another colour, '#rrggbb', [red, green, blue] up to 255, or drop"
# In an image's info: some of its pixels were transparent.
WAS_TRANSPARENT = "was_transparent"
# There too: the file does not say that the last band, which Pillow calls alpha, is that.
NOT_ALPHA = "not_alpha"


def parse_colour(given: Any) -> Colour | None:
    """None: transparency is dropped. Raises ValueError."""
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
    raise ValueError(f"expected {FORMS}; got {given!r}.")


def has_alpha(image: Image.Image) -> bool:
    if NOT_ALPHA in image.info:
        return False
    of_colours = image.mode == "P" and getattr(image.palette, "mode", "") == "RGBA"
    alpha = of_colours or image.mode in ("RGBA", "LA", "PA")
    return alpha or "transparency" in image.info


def put_on_colour(image: Image.Image, colour: Colour) -> Image.Image:
    """Return RGB, or the image as RGBA if all of it is opaque. image: of 8 bits, in any mode."""
    from PIL import Image

    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image
    made = Image.new("RGB", image.size, colour)
    made.paste(image, mask=image)
    made.info = {**image.info, WAS_TRANSPARENT: True}
    return made


def put_array_on_colour(
    values: NDArray[np.uint8], opacity: NDArray[Any], colour: Colour
) -> NDArray[np.uint8]:
    """Return RGB. values: height x width x 1 or 3; opacity: height x width, from 0 to 1."""
    import numpy as np

    seen = opacity[..., None]
    made: NDArray[Any] = np.rint(values * seen + np.array(colour) * (1 - seen))
    return made.astype(np.uint8)
