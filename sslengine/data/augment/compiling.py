"""How kernels are compiled: together, when a back-end asks for them, so that an operation can keep
its kernel in its file, and only a back-end that compiles requires numba.

    @kernel("void(uint8[:, :, ::1], float32)")
    def darken(planes, factor): ...

Until then these are plain functions of Python. Compiled code is kept next to the module or,
where that cannot be written, in the user's cache folder. A kernel is called in its own module
alone: numba looks for changes in its file, and another module might have imported the plain
function.
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


# What waits, each after the subroutines that it calls; None: what comes is compiled at once.
_waiting: list[Callable[[], None]] | None = []


def subroutine(function: F) -> F:
    """Compile a function as a part of the kernels of its module that call it."""
    return _replace(function, lambda: _njit()(function))


def inlined(function: F) -> F:
    """Compile a subroutine for the inside of a loop, which would not vectorise around a call."""
    return _replace(function, lambda: _njit(inline="always")(function))


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for these types of arguments, as numba writes them. It runs without the
    interpreter's lock."""
    return lambda function: _replace(function, lambda: _compile(function, signature))


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


def _replace(function: F, compile_it: Callable[[], Any]) -> F:
    """Put the compiled function in its place in its module, where others of the module find it."""
    if _waiting is None:
        return compile_it()  # type: ignore[no-any-return]

    def replace() -> None:
        function.__globals__[function.__name__] = compile_it()

    _waiting.append(replace)
    return function


def _njit(*given: Any, **options: Any) -> Any:
    return import_module("numba").njit(*given, **options)


def _compile(function: Any, signature: str) -> Any:
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
