"""How files become arrays for compiled kernels. Imported, it compiles them: forked workers, and
what waits for kernels anywhere, have them from then on."""

from __future__ import annotations

from typing import Any

import simplejpeg

from sslengine.data.augment import pipeline  # noqa: F401 - whose transforms' kernels are compiled
from sslengine.data.augment.compiling import compile_kernels
from sslengine.data.augment.image import Rgb, make_rgb, share
from sslengine.data.decode.decoding import Decoder

compile_kernels()


def decode(encoded: bytes, decoder: Decoder) -> Any:
    """Decode as `decoder` does, with its errors; JPEG files by simplejpeg, to the same pixels."""
    image = decoder.opened(encoded)  # Pillow's word on what is an image, for 2 % of the time
    if decoder.is_plain_jpeg(image):
        try:
            pixels = simplejpeg.decode_jpeg(encoded, "RGB")  # type: ignore[attr-defined]
            return share(pixels.view(Rgb))
        except ValueError:
            pass  # it is stricter: Pillow may still make something of it
    return make_rgb(decoder.pixels(image))
