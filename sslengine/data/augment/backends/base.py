"""What a back-end is: how the pixels of views are made.

    @register_augment_backend("mine")
    class MyBackend(Backend): ...

`config.DATA.AUGMENT_BACKEND` names one. It is made without arguments and pickled into every
loader worker. A source is shared by views: a back-end never writes to it.

Where the TRANSFORMS end with ToTensor, what leaves a worker is a uint8 tensor for each view.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from sslengine.config.facts import ALWAYS_THERE, best_backend, why_not
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.view import Source
from sslengine.data.decode.decoding import Decoder
from sslengine.errors import ConfigError
from sslengine.registry import AUGMENT_BACKENDS

logger = logging.getLogger(__name__)


class Backend(ABC):
    @property
    def modules(self) -> tuple[str, ...]:
        """That a loader worker needs, and that may take long to import."""
        return (type(self).__module__,)

    def decode(self, encoded: bytes, decoder: Decoder) -> Source:
        """What `decoder` makes of the bytes of a file, RGB, and its errors."""
        return decoder(encoded)

    @abstractmethod
    def image(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        """A new image, for a transform that may draw into it."""

    @abstractmethod
    def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        """uint8, 3 x height x width, contiguous, and not the source's memory."""

    def rendered(self, source: Source, ops: Sequence[Operation]) -> Source:
        """The source of views that have these operations in common."""
        return self.image(source, ops)


def build_backend(name: str, where: str = "config.DATA.AUGMENT_BACKEND") -> Backend:
    if problem := why_not(name):
        raise ConfigError(f"{where}: {problem}")
    chosen = best_backend() if name == "auto" else name
    try:
        return _made(chosen, where)
    except ImportError as error:  # numba refuses a numpy that is too new
        problem = f"{chosen} is installed, but its import failed: {error}."
        if name != "auto":
            raise ConfigError(f"{where}: {problem} {ALWAYS_THERE} needs no package.") from error
    logger.warning("%s: %s The slower %s makes the same pixels.", where, problem, ALWAYS_THERE)
    return _made(ALWAYS_THERE, where)


def _made(name: str, where: str) -> Backend:
    backend: Backend = AUGMENT_BACKENDS.get(name, where)()
    return backend
