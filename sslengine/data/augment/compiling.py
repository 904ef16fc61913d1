"""How kernels are compiled: together, when a back-end asks for them, so that an operation can keep
its kernel in its file, and only a back-end that compiles requires numba.

    @kernel("void(uint8[:, :, ::1], float32)")
    def darken(planes, factor): ...

Until then these are plain functions of Python. Compiled code is kept next to the module or,
where that cannot be written, in the user's cache folder. A kernel calls none of another module:
numba looks for changes in the kernel's own file alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from sslengine.progress import progress

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

# Names for what is of a fixed type in compiled code, and of none outside.
Number = Any
Array = Any


class Kernel:
    """A kernel, under any name it was imported by: Python's function until it is compiled."""

    __slots__ = ("run",)

    def __init__(self, function: Any) -> None:
        self.run = function

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)


# What waits, each after the subroutines that it calls; None: what comes is compiled at once.
_waiting: list[Callable[[], None]] | None = []


def subroutine(function: F) -> F:
    """Compile a function as a part of the kernels of its module that call it."""
    return _replace(function)


def inlined(function: F) -> F:
    """Compile a subroutine for the inside of a loop, which would not vectorise around a call."""
    return _replace(function, inline="always")


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for these types of arguments, as numba writes them. It runs without the
    interpreter's lock."""

    def mark(function: F) -> F:
        made = Kernel(function)

        def compile_now() -> None:
            made.run = _compiled(function, signature)

        _later(compile_now)
        return made  # type: ignore[return-value]

    return mark


def compile_kernels() -> None:
    """Compile those of the modules imported so far; from now on each one when it is imported."""
    global _waiting
    import_module("numba")  # if that fails, the functions of Python stay
    waiting, _waiting = _waiting or (), None
    what = "compiling augmentation kernels, which are kept for next time"
    with progress(what, len(waiting), "functions") as step:
        for compile_now in waiting:
            compile_now()
            step(1)


def _later(compile_now: Callable[[], None]) -> None:
    if _waiting is None:
        compile_now()
    else:
        _waiting.append(compile_now)


def _replace(function: F, **options: Any) -> F:
    """Put the compiled function in its place in its module, where numba looks for it."""
    if _waiting is None:
        return _njit(**options)(function)  # type: ignore[no-any-return]

    def compile_now() -> None:
        function.__globals__[function.__name__] = _njit(**options)(function)

    _later(compile_now)
    return function


def _njit(*given: Any, **options: Any) -> Any:
    return import_module("numba").njit(*given, **options)


def _compiled(function: Any, signature: str) -> Any:
    began = time.perf_counter()
    try:
        compiled = _njit(signature, nogil=True, cache=True)(function)
    except (RuntimeError, OSError) as error:
        # No folder can be written, or the disk is full: every process compiles for itself.
        logger.warning("cannot keep compiled code for later runs: %s", error)
        compiled = _njit(signature, nogil=True)(function)
    if not compiled.stats.cache_hits:
        seconds = time.perf_counter() - began
        logger.info("compiled %s for images, in %.1f s", function.__name__, seconds)
    return compiled
