"""Results of the parts of a long protocol, in files: after a kill only what is missing is computed.

kept = Kept(folder, depends_on=digest_of(features, labels, options))
part = kept.get("cls3") or kept.put("cls3", {"weights": ...})
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from sslengine.atomic import whole_file

Arrays = Mapping[str, Any]
_OF = "depends_on"


class Kept:
    def __init__(self, folder: Path, depends_on: str, again: bool = False) -> None:
        """again: compute each part once more."""
        self.folder, self._of, self._again = folder, depends_on, again

    def get(self, name: str) -> Arrays | None:
        """None: it is missing, or depends on something else."""
        if self._again:
            return None
        try:
            with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
                held = dict(file)
        except (OSError, ValueError, BadZipFile):
            return None
        return held if str(held.pop(_OF, "")) == self._of else None

    def put(self, name: str, arrays: Arrays) -> Arrays:
        whole: dict[str, Any] = {_OF: np.array(self._of), **arrays}
        with whole_file(self.folder / f"{name}.npz") as file:
            np.savez(file, **whole)
        return arrays


def digest_of(*parts: NDArray[Any] | str) -> str:
    digest = hashlib.sha256()
    for each in parts:
        some = each.encode() if isinstance(each, str) else np.ascontiguousarray(each).tobytes()
        digest.update(hashlib.sha256(some).digest())
    return digest.hexdigest()
