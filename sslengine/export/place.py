"""What an export needs before the network is read: a new folder, and the format's packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from sslengine.errors import ExportError, OutputError

# Packages that write a format.
_NEEDED = {"onnx": ("onnx", "onnxscript")}


def expect_packages(to: str) -> None:
    missing = [name for name in _NEEDED.get(to, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"--to {to}: install {' and '.join(missing)} first: pip install 'sslengine[export]'."
        )


def expect_free(out: Path) -> None:
    if out.is_dir() and not out.is_symlink():
        if any(out.iterdir()):
            raise OutputError(f"{out} is not empty, and is not overwritten. Give a new folder.")
    elif out.exists() or out.is_symlink():
        raise OutputError(f"{out} is no folder, and is not overwritten. Give a new folder.")
    above = next(each for each in out.absolute().parents if each.exists())
    if not above.is_dir():
        raise OutputError(f"{out} cannot be a folder: {above} is a file.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{out} cannot be written: the folder {above} is not writable.")
