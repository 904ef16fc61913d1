"""The config of a run that is opened again: to ask its model about images, to replay it.

A config that the user types may bring code. One in a folder may come from anyone: it is
read as plain values, and names what ships with sslengine, unless the user says to trust it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sslengine.config.compose import Assignment, Composition, compose, compose_on
from sslengine.config.fast import FAST, why_not
from sslengine.config.files import Layer
from sslengine.config.plain_file import read_plain
from sslengine.config.resolve import Resolved, freeze, resolve
from sslengine.errors import ConfigError
from sslengine.trust import Opened, closed

# What listens to training and how training is started: nothing that a trained model needs.
_OF_TRAINING_ALONE = ("HOOKS", "SLURM")
# Beside its config.yaml, a folder of YAML has none of them.
_OF_A_RUN = ("checkpoints", "environment.json", "metrics.jsonl")


def open_run(
    folder: Path, overrides: Sequence[str] = (), trusted: bool = False, judged: bool = False
) -> Resolved:
    """The config of the run, with values that the user types on top of it.

    trusted: it may import code and refer to other files and the environment, as any config may.
    judged: the run's model is looked at and not trained, so what only training needs is left out.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} has no config.yaml: it is not the folder of a run.")
    if trusted:
        composition = compose(["config=config", *overrides], [str(folder)])
        return freeze(_for_judging(composition) if judged else composition)
    tree, not_read = read_plain(path)
    composition = compose_on(Layer(str(path), tree), overrides, "config")
    opened = Opened(str(path), frozenset(_typed(composition.assignments)))
    with closed(opened):
        resolved = freeze(_for_judging(composition) if judged else composition)
    told = tuple(
        f"{each} refers to another value or to the environment, which is not read from a folder "
        f"that was opened without trust. Give the value itself; --trust-config if it is your own."
        for each in not_read
        if not any(f"{each}.".startswith(f"{path}.") for path in opened.typed)
    )
    return dataclasses.replace(resolved, warnings=(*resolved.warnings, *told), opened=opened)


def run_of(arguments: Sequence[str], config_dirs: Sequence[str]) -> Path | None:
    """The folder of a run whose own config.yaml is what a command names, by --config-dir."""
    if not any(_names_it(each) for each in arguments):
        return None
    holding = (Path(each) for each in config_dirs if (Path(each) / "config.yaml").is_file())
    folder = next(holding, None)
    return folder if folder is not None and any((folder / n).exists() for n in _OF_A_RUN) else None


def _names_it(argument: str) -> bool:
    return argument.removesuffix(".yaml") == "config=config"


def open_named(
    arguments: Sequence[str], config_dirs: Sequence[str], trusted: bool = False
) -> Resolved:
    """What a command asks for. The config of a run's folder is opened as such."""
    folder = None if trusted else run_of(arguments, config_dirs)
    if folder is None:
        return resolve(arguments, config_dirs)
    return open_run(folder, [each for each in arguments if not _names_it(each)])


def _typed(assignments: Sequence[Assignment]) -> Iterator[str]:
    """The key paths that the user typed, and every text in their values."""
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


def _for_judging(composition: Composition) -> Composition:
    """Without what training alone needs, and with a way of making pixels that is installed here."""
    layers = []
    for layer in composition.layers:
        tree = dict(layer.tree)
        config = tree["config"] = dict(tree.get("config") or {})
        for key in _OF_TRAINING_ALONE:
            config.pop(key, None)
        data = config.get("DATA")
        # All of them make the same pixels: see docs/augmentation.md.
        if isinstance(data, dict) and _is_missing(data.get("AUGMENT_BACKEND")):
            config["DATA"] = {**data, "AUGMENT_BACKEND": "auto"}
        layers.append(dataclasses.replace(layer, tree=tree))
    return dataclasses.replace(composition, layers=layers)


def _is_missing(backend: Any) -> bool:
    return backend == FAST and bool(why_not(backend))
