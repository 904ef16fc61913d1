"""The switch that decides whether an opened folder or file may run code.

A run's folder, a checkpoint or an archive may come from anyone. While one is open that the user
has not trusted, the switch is closed. Code that would import, call or unpickle something for it
calls `expect_trust` first:

    with closed(Opened("runs/mine/config.yaml")):
        ...
        expect_trust("'os:system' names Python code", "config.LOSS.name")    # UntrustedError

Components that ship with sslengine, those that installed packages declare by entry points, and
those that the user has registered, imported or typed, stay available. So does what a config names
that the user's key has signed (signing.py); all other files of its folder are as untrusted as those
of any. The current folder is searched for modules once one is needed that the user has typed or
trusted: `search_current_folder`. All threads of a process share the switch, also those started
later. Ranks get it with their config (`Resolved.opened`), loader workers by `hand_on` and
`take_over`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sslengine.errors import UntrustedError, listing, readable


@dataclass(frozen=True)
class Opened:
    """A file or folder that was opened without trust."""

    file: str
    # Key paths and values that the user typed in addition: these may name code.
    typed: frozenset[str] = frozenset()
    # Texts of its config, if the user's key has signed that: they may name code too.
    signed: frozenset[str] = frozenset()
    # Where modules are searched that only a signed config names; empty: nowhere.
    modules: str = ""


# One entry for each active `closed` block: blocks of several threads may overlap.
_closed_by: list[Opened] = []
# The folder whose modules were searched for a signed config.
_searched: set[str] = set()


@contextmanager
def closed(opened: Opened | None) -> Iterator[None]:
    """Close the switch until the block ends, with or without an error. None: do not change it."""
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


def is_config_trusted() -> bool:
    """Is every config that is open the user's own, if not the other files of its folder?"""
    return all(each.signed for each in _closed_by)


def expect_trust(what: str, where: str = "", *typed: str) -> None:
    """Raise UntrustedError if the switch is closed.

    what: a clause that says what would happen.
    where: the key path that requests it.
    typed: key paths or values; no error is raised if the user typed one of them.
    """
    for opened in tuple(_closed_by):
        if opened.typed.isdisjoint(typed) and opened.signed.isdisjoint(typed):
            place = f"{where}: " if where else ""
            raise UntrustedError(
                f"{opened.file}: {readable(place)}{readable(what)}. Refused, nothing was run: the "
                f"file may come from anyone. If you trust it: --trust-config (in Python "
                f"trust_config=True)."
            )


def search_current_folder(*names: str, imported: bool = False) -> None:
    """Find modules there, in this process and its children: for code typed or trusted alone.

    They come first, but behind installed modules while the switch is closed. What only a signed
    config names is found where its run was trained instead, as it was then: in the user's folder.
    imported: this process has them already.
    """
    folders = [
        each.modules
        for each in _closed_by
        if each.typed.isdisjoint(names) and not each.signed.isdisjoint(names)
    ]
    for folder in filter(None, folders):
        if _searched - {folder}:  # which may have modules of the same names
            raise UntrustedError(
                f"{listing(names)}: modules of {listing(_searched)} are in use, and this run was "
                f"trained in {folder}. Open it in another process."
            )
        _searched.add(folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if not folders and not imported and {"", os.getcwd()}.isdisjoint(sys.path):
        sys.path.insert(len(sys.path) if is_closed() else 0, "")


def hand_on() -> tuple[Opened, ...]:
    """Return the state of the switch, for `take_over` in another process of this run."""
    return tuple(_closed_by)


def take_over(opened: tuple[Opened, ...]) -> None:
    """Set the switch of this process permanently, to the state from `hand_on`."""
    _closed_by[:] = opened


def is_installed(file: Path) -> bool:
    """Tell whether it is a file of Python's or of an installed package, not of the user's."""
    packages = {"site-packages", "dist-packages"} & {*file.parts}
    return bool(packages) or file.is_relative_to(sysconfig.get_path("stdlib"))
