"""What a YAML file is: a run, an overlay or a part of one, or a file of another program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sslengine.config.compose import compose
from sslengine.config.files import readable_path
from sslengine.config.yaml_text import load
from sslengine.errors import SSLEngineError

# Sections that only an engine reads that does not train; VISSL names it on the command line.
ENGINE_OF = {
    "SVM": "train_svm",
    "NEAREST_NEIGHBOR": "nearest_neighbor_test",
    "IMG_RETRIEVAL": "instance_retrieval_test",
    "CLUSTERFIT": "cluster_features_and_label",
    "LOW_SHOT_BENCHMARK": "low_shot_test",
    "RANKING": "extract_features",
}
RUN, OVERLAY, PART, FOREIGN = "run", "overlay", "part", "foreign"


@dataclass(frozen=True)
class File:
    """One YAML file: its config folder, its name in it, and its role."""

    root: Path
    name: str
    role: str

    @property
    def is_run(self) -> bool:
        return self.role == RUN

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def path(self) -> Path:
        inside = self.root / "config" if (self.root / "config").is_dir() else self.root
        return inside / f"{self.name}.yaml"

    @property
    def option(self) -> str:
        """For a file in a folder: `config=` selects one alone of those at the top."""
        group, _, name = self.name.rpartition("/")
        return f"+config/{group}={name}"


def config_root(path: Path) -> Path:
    """The folder that --config-dir would name: the one that holds `config/`, as VISSL has it."""
    for parent in (path, *path.parents):
        if parent.name == "config":
            return parent.parent
        if parent.name == "configs":
            return parent
    return path if path.is_dir() else path.parent


def find(given: Path) -> list[File]:
    """Return the files of a folder, in which may be folders of configs, or one file."""
    given = given.resolve()
    found = []
    for path in [given] if given.is_file() else sorted(given.rglob("*.yaml")):
        root = config_root(path)
        root = config_root(given) if root == path.parent else root
        found.append(File(root, name_of(path, root), role_of(path, root)))
    return found


def name_of(path: Path, root: Path) -> str:
    """The file's name for `config=`."""
    inside = root / "config" if (root / "config").is_dir() else root
    return path.relative_to(inside).with_suffix("").as_posix()


def role_of(path: Path, root: Path) -> str:
    """Return the role; an unreadable file of ours is a run, so that its error is reported."""
    text = ""
    try:
        text = path.read_text()
        tree = load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        ours = not text or re.search(r"^(# @package|config:)", text, re.MULTILINE)
        return RUN if ours else FOREIGN
    if isinstance(tree, dict) and "defaults" in tree:
        tree = _with_its_bases(name_of(path, root), root)
    if not isinstance(tree, dict):
        return RUN
    config = tree.get("config")
    if not isinstance(config, dict):
        return RUN if "config" in tree else FOREIGN
    sections = {"DATA", "MODEL", "OPTIMIZER"} & set(config)
    judges = "engine_name" in tree or not ENGINE_OF.keys().isdisjoint(config)
    whole = len(sections) == 3 or (judges and "MODEL" in sections)
    if whole and ("IMG_RETRIEVAL" in config or _names_its_data(config.get("DATA"))):
        return RUN
    return OVERLAY if len(sections) > 1 else PART


def _with_its_bases(name: str, root: Path) -> dict[str, Any] | None:
    """The file merged with those of its `defaults`, if they can be read."""
    try:
        return compose([f"config={name}"], [str(root)]).said()
    except SSLEngineError:
        return None


def _names_its_data(data: Any) -> bool:
    splits = data.values() if isinstance(data, dict) else ()
    return any(isinstance(split, dict) and "DATA_SOURCES" in split for split in splits)


def compositions(file: File, runs: Sequence[File]) -> list[tuple[str, ...]]:
    """Arguments that the file is tried with. None adds a part at the top of the folder to a run."""
    if file.is_run:
        return [(f"config={file.name}",)]
    if file.folder:
        return [(f"config={base.name}", file.option) for base in bases(file, runs)]
    return [(f"config={run.name}",) for run in runs if run.root == file.root and has_in(run, file)]


def bases(part: File, known: Sequence[File]) -> list[File]:
    """The runs that a part may belong to: those of the nearest parent folder that has any."""
    runs = [file for file in known if file.is_run and file.root == part.root]
    folder = part.folder
    while True:
        near = [run for run in runs if not folder or f"{run.name}/".startswith(f"{folder}/")]
        if near or not folder:
            return near
        folder = folder.rpartition("/")[0]


def has_in(run: File, part: File) -> bool:
    """Is the part in the `defaults` of the run?"""
    try:
        layers = compose([f"config={run.name}"], [str(run.root)]).layers
    except SSLEngineError:
        return False
    return readable_path(part.path) in (layer.origin for layer in layers)
