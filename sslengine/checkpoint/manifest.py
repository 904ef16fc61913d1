"""What lies beside each checkpoint: `model_phase3.json` says what `model_phase3.torch` must be.

A checkpoint counts only if it has the size and the sha256 that its manifest tells. The
manifest is written first, so whatever has a final name can be verified; while a file is
being replaced by one of the same name, its manifest knows both contents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from sslengine.atomic import write_whole
from sslengine.errors import CheckpointError

_CHUNK = 1 << 22


class FileFacts(TypedDict):
    bytes: int
    sha256: str


@dataclass
class Manifest:
    file: str  # the checkpoint's name, in the same folder
    bytes: int
    sha256: str
    replaces: str = ""  # sha256 of an earlier file of this name
    number: int = 1  # of all saves of the run, from 1
    iteration: int = 0  # train steps made
    train_phase: int = -1  # made, from 0; -1: none yet
    world_size: int = 1
    config: str = ""  # sha256 of the resolved config
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)  # by split, as in metrics.jsonl
    files: dict[str, FileFacts] = field(default_factory=dict)  # of a sharded checkpoint

    def write(self, folder: Path) -> None:
        write_whole(path_for(folder / self.file), json.dumps(asdict(self), indent=1).encode())

    def problem(self, path: Path) -> str | None:
        """Why the checkpoint is not what it should be. Reads all of it."""
        if self.files:
            return self._problem_of_shards(path)
        if path.exists() and not path.is_file():
            return "it is not a regular file"
        size = path.stat().st_size
        if size != self.bytes and not self.replaces:
            return f"it has {size} bytes, and its manifest says {self.bytes}"
        if sha256_of(path) not in (self.sha256, self.replaces):
            return "its content is not what its manifest says (sha256)"
        return None

    def _problem_of_shards(self, folder: Path) -> str | None:
        for name, facts in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"its file {name} is missing"
            size = path.stat().st_size
            if size != facts["bytes"]:
                return f"its file {name} has {size} bytes, and the manifest says {facts['bytes']}"
            if sha256_of(path) != facts["sha256"]:
                return f"the content of its file {name} is not what the manifest says (sha256)"
        return None


def path_for(checkpoint: Path) -> Path:
    """`model_phase3.json`; of a folder `model_phase3.shards.json`, for there may be both."""
    name = checkpoint.name.removesuffix(".torch")
    return checkpoint.with_name(f"{name}.json")


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of this checkpoint. It is data: each value has the type it should have."""
    path = path_for(checkpoint)
    if not path.exists():
        raise CheckpointError(f"{checkpoint} has no manifest {path.name} beside it.")
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


_TEXTS, _NUMBERS = ("sha256", "replaces", "config"), ("number", "iteration", "world_size")


def _problem_of_values(stored: Any, name: str) -> str | None:
    """Why this cannot be the manifest of the checkpoint `name`."""
    if not isinstance(stored, dict):
        return f"it holds {type(stored).__name__}, not names and values."
    missing = [key for key in ("file", "bytes", "sha256") if key not in stored]
    if missing:
        return f"it has no {' and no '.join(missing)}."
    if stored["file"] != name:
        return f"it is of {stored['file']!r}, and lies beside {name}."
    for key in _TEXTS:
        if not isinstance(stored.get(key, ""), str):
            return f"{key} is {stored[key]!r}, and should be text."
    for key in ("bytes", *_NUMBERS, "train_phase"):
        least = -1 if key == "train_phase" else 0
        if not _is_number(stored.get(key, 0), least):
            return f"{key} is {stored[key]!r}, and should be a number from {least} on."
    return _problem_of_parts(stored)


def _problem_of_parts(stored: Mapping[str, Any]) -> str | None:
    kinds = {"versions": str, "results": dict, "files": dict}
    for key, kind in kinds.items():
        found = stored.get(key, {})
        if not isinstance(found, dict) or not all(isinstance(v, kind) for v in found.values()):
            return f"{key} should be names and, for each, {kind.__name__}; got {found!r:.100}."
    if bool(stored.get("files")) != stored["file"].endswith(".shards"):
        return "it should list the files of a folder .shards, and of nothing else."
    for name, facts in stored.get("files", {}).items():
        plain = name == Path(name).name and name not in ("", "..")
        whole = _is_number(facts.get("bytes"), 0) and isinstance(facts.get("sha256"), str)
        if not (plain and whole):
            return f"files: {name!r} should be a name in the folder, with its bytes and sha256."
    return None


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def verify(checkpoint: Path) -> Manifest:
    """Raises CheckpointError unless the file is, byte by byte, the one that was saved."""
    manifest = read_manifest(checkpoint)
    try:
        problem = manifest.problem(checkpoint)
    except OSError as error:
        raise CheckpointError(f"{checkpoint} cannot be read: {error.strerror}.") from error
    if problem is not None:
        raise CheckpointError(f"{checkpoint} is not whole: {problem}.")
    return manifest


def sha256_of(path: Path) -> str:
    """Half a second for a GB; other threads run on meanwhile."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
