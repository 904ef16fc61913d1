"""Find the module of a format, and prove what it made.

A process without sslengine computes the features of the same images by the format's library.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sslengine.errors import ExportError
from sslengine.export import FORMATS, SELDOM
from sslengine.export.subject import IMAGES, Subject
from sslengine.progress import progress

TOLERANCE = 1e-5  # relative to the largest feature, if that is above 1
_LIMIT = 1800  # seconds

_HEAD = """
import sys
sys.modules["sslengine"] = None  # whoever imports it fails
import numpy
from importlib.metadata import version
folder, given, made, library = sys.argv[1:]
images = numpy.load(given)
"""
_TAIL = """
numpy.save(made, numpy.asarray(features))
print(version(library))
"""


@dataclass(frozen=True)
class Proof:
    """Lines of Python for a new process, which compute `features` with one library."""

    library: str  # what has to be installed
    load: str  # lines that make `model`; {folder} is that of the export
    features: str  # lines that make `features` of `images`, a tensor or an array
    tolerance: float = TOLERANCE
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


def find(name: str) -> Any:
    """Import the module of one of FORMATS.

    Its `prepare(subject, license)` raises ExportError if the trunk has no such format, and writes
    nothing.
    """
    folder, module = "contrib" if name in SELDOM else "export", name.replace("-", "_")
    return importlib.import_module(f"sslengine.{folder}.to_{module}")


def prepare(subject: Subject, name: str, license: str = "") -> Made:
    """Prepare an export; the error of a trunk without this format names those that it has."""
    try:
        made: Made = find(name).prepare(subject, license)
    except ExportError as error:
        able = [each for each in FORMATS if each != name and _can(subject, each)]
        raise ExportError(
            f"--to {name}: {error}\n  Nothing was written. It can be exported --to "
            f"{' | '.join(able)}."
        ) from error
    return made


def _can(subject: Subject, name: str) -> bool:
    try:
        find(name).prepare(subject, "")
    except ExportError:
        return False
    return True


# ---- proof


def prove(made: Made, folder: Path, subject: Subject) -> list[dict[str, Any]]:
    """Say what was proved, and why what was not; raise an ExportError if it is wrong."""
    if not made.proofs:
        return [{"not_proved": made.not_proved}]
    return [_prove(each, folder, subject) for each in made.proofs]


def _prove(proof: Proof, folder: Path, subject: Subject) -> dict[str, Any]:
    module = proof.library.replace("-", "_")
    if importlib.util.find_spec(module) is None:
        why = f"{proof.library} is not installed here"
        return {"library": proof.library, "not_proved": why}
    expected = subject.features.numpy() if proof.expected is None else proof.expected
    if proof.expected is None and _all_equal(expected):
        why = "the trunk gives all images the same features, as every network that collapsed does"
        return {"library": proof.library, "not_proved": why}
    version, found = _compute_apart(proof, folder, subject)
    apart = difference(found, expected, proof.library, proof.tolerance)
    return {
        "library": proof.library,
        "version": version,
        "in": "a new process without sslengine",
        "compared": proof.compared,
        "largest_difference": apart,
        "tolerance": proof.tolerance,
    }


def _all_equal(features: NDArray[Any]) -> bool:
    return float(np.ptp(features, axis=0).max()) <= 1e-4 * max(1.0, float(np.abs(features).max()))


def difference(
    found: NDArray[Any], expected: NDArray[Any], whose: str, tolerance: float = TOLERANCE
) -> float:
    """Return how far features are apart; raise an ExportError if that is too far."""
    if found.shape != expected.shape:
        raise ExportError(f"{whose} gives {found.shape}, and the trunk {expected.shape}.")
    apart = float(np.abs(found.astype(np.float64) - expected).max())
    if not apart <= tolerance * max(1.0, float(np.abs(expected).max())):
        raise ExportError(f"{whose} computes other features: they differ by {apart:.3g}.")
    return apart


def _compute_apart(proof: Proof, folder: Path, subject: Subject) -> tuple[str, NDArray[Any]]:
    with TemporaryDirectory() as place:
        given, made = Path(place, "given.npy"), Path(place, "made.npy")
        np.save(given, subject.images.numpy() if proof.given is None else proof.given)
        names = [str(each) for each in (folder.resolve(), given, made, proof.library)]
        with progress(f"comparing with the features that {proof.library} computes"):
            done = subprocess.run(
                [sys.executable, "-c", script(proof), *names], cwd=place, capture_output=True,
                text=True, check=False, timeout=_LIMIT,
            )  # fmt: skip
        if done.returncode:
            raise ExportError(
                f"{proof.library} cannot read what was exported:\n{done.stderr.strip()[-2000:]}"
            )
        return done.stdout.split()[-1], np.load(made)


def script(proof: Proof) -> str:
    """Return the program. The folder is an argument: its name may be anything, and is no code."""
    load = re.sub(r'"([^"\n]*\{folder\})', r'f"\1', proof.load)
    if not proof.torch:
        return f"{_HEAD}{load}\n{proof.features}\n{_TAIL}"
    threads = torch.get_num_threads()
    head = f"{_HEAD}import torch\ntorch.set_num_threads({threads})\ntorch.set_grad_enabled(False)\n"
    return f"{head}images = torch.from_numpy(images)\n{load}\n{proof.features}\n{_TAIL}"
