"""AUGMENT_BACKEND: what images are while transforms are at work.

pil      PIL images
numba    of 8-bit RGB, arrays for compiled kernels, which come to the same pixels
auto     numba if its packages are installed
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sslengine.config.facts import ALWAYS_THERE, FAST, best_backend, why_not
from sslengine.data.augment.image import make_rgb
from sslengine.data.decode.decoding import Decoder
from sslengine.errors import ConfigError

logger = logging.getLogger(__name__)

COMPILED = "sslengine.data.augment.compiled"


@dataclass(frozen=True)
class Backend:
    """How an image comes to the head of a TRANSFORMS list; pickled into every loader worker."""

    name: str
    decode: Callable[[bytes, Decoder], Any]
    module: str  # that a loader worker needs, and that may take long to import

    def take(self, image: Any) -> Any:
        """Return an image that a source made itself as it comes to the list."""
        return make_rgb(image) if self.name == FAST else image


def decode(encoded: bytes, decoder: Decoder) -> Any:
    """Return what the decoder makes of the bytes of a file."""
    return decoder(encoded)


def build_backend(name: str, where: str = "config.DATA.AUGMENT_BACKEND") -> Backend:
    """Return the back-end of this name; raise ConfigError where there is none."""
    if problem := why_not(name):
        raise ConfigError(f"{where}: {problem}")
    chosen = best_backend() if name == "auto" else name
    if chosen == FAST:
        try:
            return Backend(FAST, import_module(COMPILED).decode, COMPILED)
        except ImportError as error:  # numba refuses a numpy that is too new
            problem = f"{chosen} is installed, but its import failed: {error}."
            if name != "auto":
                raise ConfigError(f"{where}: {problem} {ALWAYS_THERE} needs no package.") from error
        logger.warning("%s: %s The slower %s makes the same pixels.", where, problem, ALWAYS_THERE)
    return Backend(ALWAYS_THERE, decode, __name__)
