"""The manifest of a checkpoint: `model_phase3.json` has the sha256 of `model_phase3.torch`.

A checkpoint counts only if its size and sha256 match its manifest. The manifest is written
first, so every file with a final name can be verified. While a file is being replaced by one
of the same name, its manifest lists the sha256 of both.
"""

from __future__ import annotations

import hashlib
import json
import re
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
        """Return how the checkpoint differs from its manifest; None if not. Reads all of it."""
        whole: FileFacts = {"bytes": self.bytes, "sha256": self.sha256}
        for name, facts in (self.files or {"": whole}).items():
            file, its = (path / name, f"its file {name}") if name else (path, "it")
            if not file.is_file() and (name or file.exists()):
                return f"{its} is not a regular file"
            size = file.stat().st_size
            if size != facts["bytes"] and not self.replaces:
                return f"{its} has {size} bytes; its manifest has {facts['bytes']}"
            if sha256_of(file) not in (facts["sha256"], self.replaces):
                return f"{its} has another sha256 than its manifest"
        return None


# The type of each value of a manifest, and of the values of those that are dicts.
_KINDS = {each.name: type(getattr(Manifest("", 0, ""), each.name)) for each in fields(Manifest)}
_INNER = {"versions": str, "results": dict, "files": dict}


def is_checkpoint(path: Path) -> bool:
    return _NAME.fullmatch(path.name) is not None


def path_for(checkpoint: Path) -> Path:
    """Return `model_phase3.json`, or for a folder `model_phase3.shards.json`: both may exist."""
    name = checkpoint.name.removesuffix(".torch")
    return checkpoint.with_name(f"{name}.json")


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of this checkpoint, and check the type of each value."""
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


def _problem_of_values(stored: Any, name: str) -> str | None:
    """Return why what anyone may have written is no manifest of the checkpoint `name`."""
    if not isinstance(stored, dict) or not {"file", "bytes", "sha256"} <= stored.keys():
        return "it should hold file, bytes, sha256 and more."
    if stored["file"] != name:
        return f"it is for {stored['file']!r}, and is next to {name}."
    for key in _KINDS.keys() & stored.keys():
        kind, inner, value = _KINDS[key], _INNER.get(key, object), stored[key]
        if type(value) is not kind:  # a bool is no number
            return f"{key} is {value!r:.100}, and should be of type {kind.__name__}."
        if kind is dict and not all(isinstance(each, inner) for each in value.values()):
            return f"{key} should map names to {inner.__name__}; got {value!r:.100}."
    files = stored.get("files", {})
    if bool(files) != name.endswith(".shards"):
        return "it should list files exactly if the checkpoint is a folder .shards."
    for each, facts in files.items():
        is_plain = each == Path(each).name and each not in ("", "..")
        if not is_plain or [type(facts.get(key)) for key in ("bytes", "sha256")] != [int, str]:
            return f"files: {each!r} should be a name in the folder, with its bytes and sha256."
    return None


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
    """Hash a file, half a second per GB; other threads run meanwhile."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
