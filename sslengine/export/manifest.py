"""manifest.json of an export: what the weights are, where they come from, what was proved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import sslengine
from sslengine.checkpoint.manifest import read_manifest, sha256_of
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.fingerprint import identify
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.errors import SSLEngineError
from sslengine.export.subject import Subject
from sslengine.losses.options import LossOptions
from sslengine.models.weights.read import list_files

NAME = "manifest.json"
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "onnxruntime")
YOURS = (
    "yours: sslengine claims nothing of the weights that you train with it. The licences of your "
    "images, and of weights that training started from, still apply."
)


def describe(subject: Subject) -> dict[str, Any]:
    """What is true of the trunk in any format."""
    trunk, options = subject.trunk, subject.options
    library = options.TRUNK.library()
    return {
        "sslengine": sslengine.__version__,
        "trunk": options.TRUNK.NAME if library is None else library.model,
        "layer": subject.layer,
        "feature_dim": subject.features.shape[1],
        "parameters": sum(each.numel() for each in trunk.parameters()),
        "network": subject.network,
        "method": read(subject.config, LossOptions).name,
        "view": asdict(subject.preprocessing),
        "transparent": subject.image_options.TRANSPARENT,
        "started_from": _started_from(subject),
        **(
            _of_file(subject.checkpoint)
            if subject.run_folder is None
            else _of_run(subject, subject.run_folder)
        ),
        "versions": {name: found for name in _LIBRARIES if (found := _version(name))},
    }


def _started_from(subject: Subject) -> str:
    """The name alone: a path may be private."""
    options, library = subject.options, subject.options.TRUNK.library()
    if options.WEIGHTS_INIT.PARAMS_FILE:
        return Path(options.WEIGHTS_INIT.PARAMS_FILE).name
    if library is not None and library.pretrained:
        return f"{library.library}'s weights of {library.model}"
    return "random weights"


def _of_file(file: Path) -> dict[str, Any]:
    """Of another program: its data and its training are not known."""
    found = {
        str(each.relative_to(file.parent)): sha256_of(each) for each in sorted(list_files(file))
    }
    if len(found) > 1:
        return {"checkpoint": {"file": file.name, "files": found}}
    ((name, digest),) = found.items()
    return {"checkpoint": {"file": name, "sha256": digest}}


def _of_run(subject: Subject, folder: Path) -> dict[str, Any]:
    return {
        "run": folder.resolve().name,
        **_of_checkpoint(subject.checkpoint),
        "data": fingerprint_of(subject),
        "evaluation": _evaluation(folder),
    }


def _of_checkpoint(checkpoint: Path) -> dict[str, Any]:
    found = read_manifest(checkpoint)
    return {
        "checkpoint": {
            "file": found.file,
            "sha256": found.sha256,
            "iteration": found.iteration,
        },
        "config_sha256": found.config,
        "results": found.results,
    }


def fingerprint_of(subject: Subject) -> dict[str, Any]:
    """Of the images that were trained on: by what is below what DATA_PATHS names."""
    data, seed = read(subject.config, DataOptions), read(subject.config, RunOptions).SEED_VALUE
    try:
        dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
        return identify(dataset, data.TRAIN.DATA_PATHS)
    except (SSLEngineError, OSError) as error:
        return {"fingerprint": None, "why": f"the images cannot be listed here: {error}"}


def _evaluation(run_folder: Path) -> Any:
    try:
        return json.loads((run_folder / "evaluation.json").read_bytes())
    except (OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def files_in(folder: Path) -> dict[str, dict[str, Any]]:
    """All files of an export but the manifest itself."""
    paths = sorted(each for each in folder.iterdir() if each.name != NAME)
    return {each.name: {"bytes": each.stat().st_size, "sha256": sha256_of(each)} for each in paths}


def write(folder: Path, content: Mapping[str, Any]) -> None:
    whole = {**content, "files": files_in(folder)}
    (folder / NAME).write_text(json.dumps(whole, indent=2) + "\n")


def checkpoint_of(folder: Path) -> str | None:
    """The SHA-256 of the checkpoint whose weights an export holds; None if there is none."""
    try:
        found = json.loads((folder / NAME).read_bytes())["checkpoint"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def is_untouched(folder: Path) -> bool:
    """Does the folder hold an export, and nothing that somebody has changed or added?"""
    try:
        listed = json.loads((folder / NAME).read_bytes())["files"]
        return bool(files_in(folder) == listed)
    except (OSError, ValueError, KeyError, TypeError):
        return False
