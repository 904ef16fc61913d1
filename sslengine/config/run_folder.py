"""Open the config of an existing run, to use its model on images or to replay it.

A config that the user selects may import code. A config in a run's folder may come from anyone:
unless the user trusts it, or has signed it by training (signing.py), it is read as plain values,
and may name only components of sslengine.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sslengine.config.compose import (
    CHECKPOINTS,
    Assignment,
    Composition,
    compose,
    compose_on,
    parse,
    run_of,
    search_folders,
    shipped_layers,
)
from sslengine.config.facts import FAST, REMOVED, why_not
from sslengine.config.files import ConfigFiles, Layer, stem
from sslengine.config.options import FOUND_CATALOGUE
from sslengine.config.resolve import Resolved, freeze
from sslengine.config.yaml_text import parse_plain, read_content
from sslengine.errors import ConfigError
from sslengine.signing import modules_of_signed
from sslengine.trust import Opened, closed

# What versions without the key did. A value that is derived is not compared when a run resumes.
_OLDER = Layer(
    "derived: as the run's version, which did not have the key",
    {"config": {"DATA": {split: {"TRANSPARENT": "drop"} for split in ("TRAIN", "TEST")}}},
)
# Sections that only training uses.
_TRAINING_ONLY = ("HOOKS", "SLURM", "REFERENCE_WORLD_SIZE")
# Where the catalogue of datasets may be in a folder of configs.
_CATALOGUES = ("config/dataset_catalog.json", "dataset_catalog.json")


def open_run(
    folder: Path,
    overrides: Sequence[str] = (),
    trusted: bool = False,
    judged: bool = False,
    added: str = "",
    as_trained: bool = False,
    name: str = "config",
) -> Resolved:
    """Resolve the config of the run with the user's overrides. A key that the file lacks, because
    the run is of an earlier version, has the value by which the run was trained.

    trusted: the config may import code, and refer to other files and to the environment. One that
        the user has signed may do so too, but for other files.
    judged: the run's model is evaluated and not trained; sections that only training uses are
        removed.
    as_trained: WEIGHTS_INIT, which a run with checkpoints started from, is removed too.
    added: a file that ships with sslengine, on top of the config.
    name: of the file: each engine writes its own config.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} has no config.yaml: it is not the folder of a run.")
    started = as_trained and any((folder / CHECKPOINTS).glob("*"))

    def complete(composition: Composition) -> Composition:
        layers = _add_older(composition).layers
        layers = [_drop_training(each, started) for each in layers] if judged else layers
        layers = [*layers, *(shipped_layers(added) if added else ())]
        return dataclasses.replace(composition, layers=layers)

    if trusted:
        composition = compose([f"config={name}", *overrides], [str(folder)])
        return freeze(complete(composition), judged)
    content = read_content(path)
    modules = modules_of_signed(path, content)
    tree, not_read = parse_plain(content, path, whole=modules is not None)
    composition = compose_on(Layer(str(path), tree), overrides, name)
    signed = frozenset(() if modules is None else _texts(tree))
    opened = Opened(str(path), frozenset(_typed(composition.assignments)), signed, modules or "")
    with closed(opened):
        resolved = freeze(complete(composition), judged)
    warnings = tuple(
        f"{each} refers to another value or to the environment, which is not read, because the "
        f"folder was opened without trust. Set the value; or --trust-config if you trust the run."
        for each in not_read
        if not any(f"{each}.".startswith(f"{path}.") for path in opened.typed)
    )
    return dataclasses.replace(resolved, warnings=(*resolved.warnings, *warnings), opened=opened)


def _selected(arguments: Sequence[str], config_dirs: Sequence[str]) -> Path | None:
    """Return the file of config=NAME; None if there is none, or several are named."""
    names = [each.value() for each in parse(arguments) if each.key_or_group == "config"]
    files = ConfigFiles(search_folders(config_dirs))
    return files.find(posixpath.join("/config", stem(names[0]))) if len(names) == 1 else None


def open_named(
    arguments: Sequence[str], config_dirs: Sequence[str], trusted: bool = False
) -> Resolved:
    """Resolve the arguments of a command; if they select a run's config, see open_run."""
    places = [each / name for each in search_folders(config_dirs) for name in _CATALOGUES]
    found = (each for each in places if each.is_file() and (trusted or not run_of(each)))
    # Ranks and loader workers inherit it.
    os.environ[FOUND_CATALOGUE] = str(next(found, ""))
    file = _selected(arguments, config_dirs)
    folder = file and run_of(file)
    if file is None or folder is None or trusted:
        composition = compose(arguments, config_dirs, trusted)
        if folder is not None:
            return _placed(freeze(_add_older(composition)), folder, arguments)
        resolved = freeze(composition)
        older = _is_older(Path(resolved.config.CHECKPOINT.DIR).expanduser())
        return freeze(_add_older(composition)) if older else resolved
    chosen = [each for each in arguments if not each.startswith("config=")]
    return _placed(open_run(file.parent, chosen, name=file.stem), folder, arguments)


def _is_older(folder: Path) -> bool:
    """Tell whether there is a run in it that began without the key, and resumes?"""
    file = folder / "config.yaml"
    resumes = os.path.isfile(file) and any((folder / CHECKPOINTS).glob("*"))
    return resumes and "TRANSPARENT:" not in file.read_text("utf-8", errors="replace")


def _add_older(composition: Composition) -> Composition:
    return dataclasses.replace(composition, layers=[_OLDER, *composition.layers])


def _placed(resolved: Resolved, folder: Path, arguments: Sequence[str]) -> Resolved:
    """Warn if the folder was copied or moved: the config names the folder where it was written."""
    named = Path(resolved.config.CHECKPOINT.DIR)
    typed = any(each.startswith("config.CHECKPOINT.DIR=") for each in arguments)
    if typed or named.resolve() == folder.resolve():
        return resolved
    warning = (
        f"config.CHECKPOINT.DIR: {named}, as {folder / 'config.yaml'} says: this run is in that "
        f"folder, and not in {folder}. To resume here: config.CHECKPOINT.DIR={folder}."
    )
    return dataclasses.replace(resolved, warnings=(*resolved.warnings, warning))


def _typed(assignments: Sequence[Assignment]) -> Iterator[str]:
    """Yield the key paths that the user typed, and all strings in their values."""
    for each in assignments:
        yield each.path
        yield from _texts(each.value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for each in pair for text in _texts(each))
    elif isinstance(value, (list, tuple)):
        yield from (text for each in value for text in _texts(each))


def _drop_training(layer: Layer, started: bool) -> Layer:
    """Remove what only training uses; replace an augmentation back-end that is missing.

    started: WEIGHTS_INIT has been used.
    """
    given = layer.tree.get("config") or {}
    config = {key: each for key, each in given.items() if key not in _TRAINING_ONLY}
    model, data, loss = config.get("MODEL"), config.get("DATA"), config.get("LOSS")
    if isinstance(loss, dict) and str(loss.get("name")).startswith("__main__:"):
        del config["LOSS"]  # of a script or a notebook: no other process has it
    if started and isinstance(model, dict):
        config["MODEL"] = {key: each for key, each in model.items() if key != "WEIGHTS_INIT"}
    # All back-ends make the same pixels: see docs/augmentation.md.
    data = data if isinstance(data, dict) else {}
    if (backend := data.get("AUGMENT_BACKEND")) in (FAST, *REMOVED) and why_not(backend):
        config["DATA"] = {**data, "AUGMENT_BACKEND": "auto"}
    return dataclasses.replace(layer, tree={**layer.tree, "config": config})
