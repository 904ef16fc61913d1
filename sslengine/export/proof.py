"""Compare an export with its source: a process without sslengine computes the same features."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.subject import Subject
from sslengine.progress import progress

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


def prove(made: Made, folder: Path, subject: Subject) -> list[dict[str, Any]]:
    """What was proved, for the manifest; what was not says why. ExportError if it is wrong."""
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
    version, found = _in_a_new_process(proof, folder, subject)
    apart = difference(found, expected, proof)
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


def difference(found: NDArray[Any], expected: NDArray[Any], proof: Proof) -> float:
    if found.shape != expected.shape:
        raise ExportError(
            f"{proof.library} gives {found.shape}, and the trunk {expected.shape}. Nothing was "
            f"written."
        )
    apart = float(np.abs(found.astype(np.float64) - expected).max())
    if not apart <= proof.tolerance * max(1.0, float(np.abs(expected).max())):
        raise ExportError(
            f"{proof.library} computes other features: they differ by {apart:.3g}. Nothing "
            f"was written."
        )
    return apart


def _in_a_new_process(proof: Proof, folder: Path, subject: Subject) -> tuple[str, NDArray[Any]]:
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
                f"{proof.library} cannot read what was exported, so nothing was written:\n"
                f"{done.stderr.strip()[-2000:]}"
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
