"""SLURM's commands as scripts that say what a test wants. The real ones: tests/slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Each name becomes a command with this text; the only ones on PATH besides /bin."""
    for name, text in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LC_ALL", "C")
    assert os.access(folder, os.X_OK)
