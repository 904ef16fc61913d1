"""The manifest of a checkpoint: `model_phase3.json` has the sha256 of `model_phase3.torch`.

A checkpoint counts only if its size and sha256 match its manifest. The manifest is written
first, so every file with a final name can be verified. While a file is being replaced by one
of the same name, its manifest lists the sha256 of both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from sslengine.atomic import write_whole
from sslengine.errors import CheckpointError
from sslengine.signing import sign_manifest

_CHUNK = 1 << 22
_NAME = re.compile(
    r"model_(?:final_checkpoint_phase|phase|iteration)\d+(?:\.torch|(?:\.\d+)?\.shards)"
)


class FileFacts(TypedDict):
    bytes: int
    sha256: str


@dataclass
class Manifest:
    file: str  # the checkpoint's name, in the same folder
    bytes: int
    sha256: str
    replaces: str = ""  # sha256 of an earlier file of this name
    number: int = 1  # of the save, counted over the whole run from 1
    iteration: int = 0  # train steps done
    train_phase: int = -1  # last finished one, from 0; -1: none yet
    world_size: int = 1
    config: str = ""  # sha256 of the resolved config
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)  # by split, as in metrics.jsonl
    files: dict[str, FileFacts] = field(default_factory=dict)  # of a sharded checkpoint
    signature: str = ""  # by the user's key: see signing.py

    def write(self, folder: Path) -> None:
        self.signature = sign_manifest(folder.parent, asdict(self))
        write_whole(path_for(folder / self.file), json.dumps(asdict(self), indent=1).encode())

    def problem(self, path: Path) -> str | None:
        """How the checkpoint differs from its manifest; None if not. Reads all of it."""
        if self.files:
            return self._problem_of_shards(path)
        if path.exists() and not path.is_file():
            return "it is not a regular file"
        size = path.stat().st_size
        if size != self.bytes and not self.replaces:
            return f"it has {size} bytes; its manifest has {self.bytes}"
        if sha256_of(path) not in (self.sha256, self.replaces):
            return "its sha256 is not that of its manifest"
        return None

    def _problem_of_shards(self, folder: Path) -> str | None:
        for name, facts in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"its file {name} is missing"
            size = path.stat().st_size
            if size != facts["bytes"]:
                return f"its file {name} has {size} bytes; the manifest has {facts['bytes']}"
            if sha256_of(path) != facts["sha256"]:
                return f"the sha256 of its file {name} is not that of the manifest"
        return None


def is_checkpoint(path: Path) -> bool:
    return _NAME.fullmatch(path.name) is not None


def path_for(checkpoint: Path) -> Path:
    """`model_phase3.json`; `model_phase3.shards.json` for a folder, since both may exist."""
    name = checkpoint.name.removesuffix(".torch")
    return checkpoint.with_name(f"{name}.json")


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of this checkpoint, after checking the type of each value."""
    path = path_for(checkpoint)
    if not path.exists():
        raise CheckpointError(f"{checkpoint} has no manifest {path.name} next to it.")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a manifest: it is not a regular file.")
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a manifest: {error}") from error
    problem = _problem_of_values(stored, checkpoint.name)
    if problem is not None:
        raise CheckpointError(f"{path} is not a manifest: {problem}")
    known = {each.name for each in fields(Manifest)}
    return Manifest(**{key: value for key, value in stored.items() if key in known})


_TEXTS, _NUMBERS = (
    ("sha256", "replaces", "config", "signature"),
    ("number", "iteration", "world_size"),
)


def _problem_of_values(stored: Any, name: str) -> str | None:
    """Why this cannot be the manifest of the checkpoint `name`."""
    if not isinstance(stored, dict):
        return f"it holds {type(stored).__name__}, not names and values."
    missing = [key for key in ("file", "bytes", "sha256") if key not in stored]
    if missing:
        return f"it has no {' and no '.join(missing)}."
    if stored["file"] != name:
        return f"it is for {stored['file']!r}, and is next to {name}."
    for key in _TEXTS:
        if not isinstance(stored.get(key, ""), str):
            return f"{key} is {stored[key]!r}, and should be text."
    for key in ("bytes", *_NUMBERS, "train_phase"):
        least = -1 if key == "train_phase" else 0
        if not _is_number(stored.get(key, 0), least):
            return f"{key} is {stored[key]!r}, and should be an integer of at least {least}."
    return _problem_of_parts(stored)


def _problem_of_parts(stored: Mapping[str, Any]) -> str | None:
    kinds = {"versions": str, "results": dict, "files": dict}
    for key, kind in kinds.items():
        found = stored.get(key, {})
        if not isinstance(found, dict) or not all(isinstance(v, kind) for v in found.values()):
            return f"{key} should map names to {kind.__name__}; got {found!r:.100}."
    if bool(stored.get("files")) != stored["file"].endswith(".shards"):
        return "it should list files exactly if the checkpoint is a folder .shards."
    for name, facts in stored.get("files", {}).items():
        plain = name == Path(name).name and name not in ("", "..")
        complete = _is_number(facts.get("bytes"), 0) and isinstance(facts.get("sha256"), str)
        if not (plain and complete):
            return f"files: {name!r} should be a name in the folder, with its bytes and sha256."
    return None


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def verify(checkpoint: Path) -> Manifest:
    """Raise CheckpointError unless the file's bytes are those that were saved."""
    manifest = read_manifest(checkpoint)
    try:
        problem = manifest.problem(checkpoint)
    except OSError as error:
        raise CheckpointError(f"{checkpoint} cannot be read: {error.strerror}.") from error
    if problem is not None:
        raise CheckpointError(f"{checkpoint} is not intact: {problem}.")
    return manifest


def sha256_of(path: Path) -> str:
    """Takes half a second per GB; other threads run meanwhile."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
