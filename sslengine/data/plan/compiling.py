"""How kernels are compiled: as their module is imported, so that forked workers have them.

What was compiled is kept beside the module or, where that cannot be written, in the user's
cache folder. A kernel calls none of another module: numba looks for changes in the kernel's
own file alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numba

from sslengine import startup

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# Names for what is of a fixed type in compiled code, and of none outside.
Number = Any
Array = Any

njit: Any = numba.njit  # whose own hints tell a compiled function from any other

# A function that is compiled as a part of the kernels that call it.
subroutine: Callable[[F], F] = njit


def inlined(function: F) -> F:
    """A subroutine for the inside of a loop, which would not vectorise around a call."""
    return njit(inline="always")(function)  # type: ignore[no-any-return]


def kernel(signature: Any) -> Callable[[F], F]:
    """Compiles a function for these types of arguments. It runs without the interpreter's lock."""

    def compile_now(function: F) -> F:
        began = time.perf_counter()
        try:
            compiled = njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError) as error:
            # No folder can be written, or the disk is full: every process compiles for itself.
            logger.warning("cannot keep compiled code for later runs: %s", error)
            compiled = njit(signature, nogil=True)(function)
        if not compiled.stats.cache_hits:
            seconds = time.perf_counter() - began
            startup.move_from_imports("compiling", seconds)
            logger.info(
                "compiled %s for images, in %.1f s; kept for later runs",
                function.__name__, seconds, extra={"on_screen": seconds > 1},
            )  # fmt: skip
        return compiled  # type: ignore[no-any-return]

    return compile_now
