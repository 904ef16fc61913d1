"""A file of weights that the user names for a command to read."""

from __future__ import annotations

from pathlib import Path

from sslengine.errors import MissingCheckpointError
from sslengine.registry import import_dotted


def expect_weights(path: str | Path, option: str) -> None:
    if not str(path):
        raise MissingCheckpointError(f"{option}: expected a file or a folder, got an empty text.")
    if not Path(path).exists():
        how_far = import_dotted("sslengine.data.sources.paths:how_far")
        raise MissingCheckpointError(
            f"{option} {Path(path)}: it is not there: {how_far(Path(path))}"
        )
