"""What a format is made of, and how the module of each is found."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from sslengine.errors import ExportError, nearest
from sslengine.export import FORMATS
from sslengine.export.subject import IMAGES, Subject


@dataclass(frozen=True)
class Proof:
    """Lines of Python for a new process, which compute `features` with one library."""

    library: str  # what has to be installed
    load: str  # lines that make `model`; {folder} is that of the export
    features: str  # lines that make `features` of `images`, a tensor or an array
    tolerance: float = 1e-5
    given: NDArray[Any] | None = None  # `images`; None: the subject's, normalised
    expected: NDArray[Any] | None = None  # None: the subject's features
    compared: str = f"features of {IMAGES} normalised images"
    torch: bool = True  # tensors, without gradients; False: arrays


@dataclass(frozen=True)
class Made:
    """An export that is ready to be written."""

    write: Callable[[Path], None]
    # The lines that a user writes; {folder} is that of the export.
    usage: str
    proofs: tuple[Proof, ...] = ()
    # Why there is no proof, if there is none.
    not_proved: str = ""
    # For the manifest.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Lines that follow those of usage, for the features of one image.
    example: str = ""
    # What else the page says.
    remarks: tuple[str, ...] = ()


class Format(Protocol):
    def prepare(self, subject: Subject, license: str) -> Made:
        """Raise ExportError if this trunk has no such format. Nothing is written."""


def find(name: str) -> Format:
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise ExportError(
            f"--to {name}: there is no such format. {nearest(name, FORMATS)}\n  Known: {known}"
        )
    return cast(Format, importlib.import_module(f"sslengine.export.to_{name.replace('-', '_')}"))


def prepare(subject: Subject, name: str, license: str = "") -> Made:
    """The error of a trunk without this format names those that it has."""
    try:
        return find(name).prepare(subject, license)
    except ExportError as error:
        able = [each for each in FORMATS if each != name and _can(subject, each)]
        raise ExportError(
            f"--to {name}: {error}\n  Nothing was written. It can be exported --to "
            f"{' | '.join(able)}."
        ) from error


def _can(subject: Subject, name: str) -> bool:
    try:
        find(name).prepare(subject, "")
    except ExportError:
        return False
    return True
