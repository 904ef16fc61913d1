"""COPY_TO_LOCAL_DISK: data on a slow network drive, once copied to a fast disk of each node.

The processes of a node take turns: the first one copies, the others find the copy. It appears
under its final name only when it is complete, and stays there for the next run, which uses it
without a comparison: after a change of the original, delete the copy.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

from sslengine.data.manifest.turns import turn
from sslengine.errors import DataError

log = logging.getLogger("sslengine")


def local_copy(original: Path, folder: Path, where: str) -> Path:
    """The copy of a file or folder in `folder`; made if missing. where: its key."""
    if not original.exists():
        return original  # the data source reports what is missing
    whole = original.resolve()
    # Two datasets may have the same name: `train`.
    copy = folder / hashlib.sha256(os.fsencode(whole)).hexdigest()[:8] / whole.name
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with turn(copy.parent / f".{copy.name}.lock", f"copying {original}"):
            if not copy.exists():
                _make(original, copy, where)
    except OSError as error:
        raise DataError(
            f"{where}: could not copy {original} to {folder}: {error}. Name another folder with "
            f"COPY_DESTINATION_DIR, or set COPY_TO_LOCAL_DISK to false."
        ) from error
    return copy


def _make(original: Path, copy: Path, where: str) -> None:
    size, free = _bytes(original), shutil.disk_usage(copy.parent).free
    if size > free:
        raise DataError(
            f"{where}: {original} takes {size / 2**30:.1f} GiB, and {copy.parent} has "
            f"{free / 2**30:.1f} GiB left. Name another folder with COPY_DESTINATION_DIR."
        )
    log.info("copying %s (%.2f GiB) to %s", original, size / 2**30, copy)
    unfinished = copy.with_name(f".{copy.name}.unfinished")
    if original.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        shutil.copytree(original, unfinished)
    else:
        shutil.copy2(original, unfinished)
    os.replace(unfinished, copy)


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )
