"""One switch: may what has been opened bring code?

A run's folder, a checkpoint or an archive may be anybody's. While one is open that the user did
not say to trust, the switch is closed, and whatever would import, call or unpickle code on its
behalf asks here first:

    with closed(Opened("runs/mine/config.yaml")):
        ...
        expect_trust("'os:system' names Python code", "config.LOSS.name")    # UntrustedError

What ships with sslengine, what the user has registered or imported and what he typed is his own
and stays available. The switch is one for all threads of a process: a thread that is started
meanwhile is bound by it too. It is handed on to ranks with their config (`Resolved.opened`) and to
loader workers by `hand_on` and `take_over`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sslengine.errors import UntrustedError, readable


@dataclass(frozen=True)
class Opened:
    """What was opened without trust."""

    file: str
    # Key paths and values that the user typed on top of it: names of code among them are his own.
    typed: frozenset[str] = frozenset()


# Of this process. An entry for each block that is being run: they may overlap in threads.
_closed_by: list[Opened] = []


@contextmanager
def closed(opened: Opened | None) -> Iterator[None]:
    """The switch is closed until the block ends, however it ends. None: it stays as it is."""
    if opened is None:
        yield
        return
    _closed_by.append(opened)
    try:
        yield
    finally:
        places = [n for n, each in enumerate(_closed_by) if each is opened]
        del _closed_by[places[-1]]


def is_closed() -> bool:
    return bool(_closed_by)


def expect_trust(what: str, where: str = "", *typed: str) -> None:
    """Raise UntrustedError if the switch is closed.

    what: what would happen, as a clause.
    where: the key path that asks for it.
    typed: it is allowed if the user typed one of these, a key path or a value.
    """
    for opened in tuple(_closed_by):
        if opened.typed.isdisjoint(typed):
            place = f"{where}: " if where else ""
            raise UntrustedError(
                f"{opened.file}: {readable(place)}{readable(what)}. Refused, nothing was run: what "
                f"was opened may be anybody's. If it is your own: --trust-config (in Python "
                f"trust_config=True)."
            )


def hand_on() -> tuple[Opened, ...]:
    """For another process of this run: see `take_over`."""
    return tuple(_closed_by)


def take_over(opened: tuple[Opened, ...]) -> None:
    """In a process that works for another one: the switch is as it was there, for good."""
    _closed_by[:] = opened
