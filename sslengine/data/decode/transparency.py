"""TRANSPARENT: the colour that is seen through transparent pixels, or drop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # options are read without Pillow, which takes its time
    from PIL import Image

Colour = tuple[int, int, int]
WHITE = (255, 255, 255)
FORMS = "white, black, the name of another colour, '#rrggbb', [red, green, blue] up to 255, or drop"
# In an image's info: some of its pixels were transparent.
WAS_TRANSPARENT = "was_transparent"
# There too: the file does not say that the band which Pillow takes for alpha is that.
NOT_ALPHA = "not_alpha"


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
    raise ValueError(f"expected {FORMS}; got {given!r}.")


def has_alpha(image: Image.Image) -> bool:
    found = image.mode in ("RGBA", "LA", "PA") or getattr(image.palette, "mode", "") == "RGBA"
    return NOT_ALPHA not in image.info and (found or "transparency" in image.info)


def put_on_colour(image: Image.Image, colour: Colour) -> Image.Image:
    """Return RGB, or the image as RGBA if all of it is opaque. image: of 8 bits, in any mode."""
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image
    made = image.convert("RGB")
    made.paste(colour, (0, 0, *made.size))
    made.paste(image, mask=image)
    made.info[WAS_TRANSPARENT] = True
    return made
