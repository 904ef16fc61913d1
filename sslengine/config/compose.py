"""Read the command line: the YAML files that it selects (files.py), and the values that it sets.

Hydra parses `key=value`. Each layer and value stores its origin, so that merge.py can report each
mistake with its origin.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from sslengine.config.files import Choice, ConfigFiles, Layer, stem
from sslengine.dotted import below, merge_trees
from sslengine.errors import ConfigError, UntrustedError

COMMAND_LINE = "command line"
CHECKPOINTS = "checkpoints"
# Entries that a run's folder has in addition to config.yaml, and a folder of configs has not.
_RUN_ENTRIES = (CHECKPOINTS, "environment.json", "metrics.jsonl")


@dataclass(frozen=True)
class Assignment:
    """One `key=value` of the command line."""

    path: str
    value: Any
    text: str
    may_be_new: bool = False


@dataclass(frozen=True)
class Composition:
    """The layers and values of one run."""

    layers: list[Layer]
    assignments: list[Assignment]
    name: str  # of the config file: quickstart/simclr

    def said(self) -> dict[str, Any]:
        """Merge the files' trees without a schema. Later files override earlier ones."""
        tree: dict[str, Any] = {}
        for layer in self.layers:
            tree = merge_trees(tree, layer.tree)
        return tree

    def values(self, path: str) -> list[Any]:
        """Return the values set for `path`, in order, without a schema."""
        unset = object()
        found = [below(layer.tree, path.split("."), unset) for layer in self.layers]
        for each in self.assignments:
            if f"{path}.".startswith(f"{each.path}."):  # it, or a section of it
                rest = path.removeprefix(each.path).split(".")[1:]
                found.append(below(each.value, rest, unset))
        return [value for value in found if value is not unset]

    def last_value(self, path: str) -> Any:
        """Return the last value set for `path`, without a schema; None if it was not set."""
        return (self.values(path) or [None])[-1]


def shipped_configs() -> Path:
    """Return the folder of sslengine's YAML: inside the wheel, or next to the package in git."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def shipped_layers(name: str) -> list[Layer]:
    """Return the layers of a file that ships with sslengine: benchmark/finetune/vit."""
    folder, _, file = name.rpartition("/")
    return ConfigFiles([shipped_configs()]).layers(
        Choice(f"/config/{folder}", file), f"config={name}"
    )


def search_folders(config_dirs: Sequence[str]) -> list[Path]:
    """Return the folders of configs; the first match wins: --config-dir, ./configs, sslengine's."""
    chosen = []
    for given in config_dirs:
        folder = Path(given).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {given}: there is no such folder.")
        chosen.append(folder)
    local = Path.cwd() / "configs"
    candidates = [*chosen, *([local] if local.is_dir() else []), shipped_configs()]
    return list(dict.fromkeys(candidates))


def run_of(file: Path) -> Path | None:
    """Return the folder of the run that a file is in or below, also through links, else None."""
    found = file.resolve()
    if shipped_configs() in found.parents:
        return None
    for folder in (*file.absolute().parents, *found.parents):
        if (folder / "config.yaml").is_file() and any((folder / n).exists() for n in _RUN_ENTRIES):
            return folder
    return None


def _expect_of_user(file: Path) -> None:
    if run := run_of(file):
        raise UntrustedError(
            f"{file} is of a run, {run}, which may come from anyone: it is not combined with "
            f"other files. If you trust it: --trust-config, or copy it to your own YAML."
        )


def is_group(override: Override) -> bool:
    """Tell whether the override selects a file (`config=...`, `+config/models=...`)."""
    return override.key_or_group == "config" or override.key_or_group.startswith("config/")


def parse(arguments: Sequence[str]) -> list[Override]:
    try:
        overrides = OverridesParser.create().parse_overrides(list(arguments))
    except (HydraException, ValueError) as error:  # ValueError: an integer of 5000 digits
        detail = str(error).splitlines()[0]
        bare = next((each for each in arguments if "=" not in each and each[:1] != "~"), "config.")
        if not bare.startswith("config."):
            raise ConfigError(
                f"{COMMAND_LINE}: {bare!r} is not KEY=VALUE. To select a file: config={stem(bare)}"
            ) from error
        raise ConfigError(
            f"{COMMAND_LINE}: {detail}\n  Write KEY=VALUE; quote a value that contains spaces, "
            f"commas or braces: \"config.CHECKPOINT.DIR='my dir'\"."
        ) from error
    return list(overrides)


def sweep(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Yield four lists of arguments for `a=1,2 b=3,4`; one without a sweep."""
    choices = []
    for override in parse(arguments):
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
            choices.append([f"{override.get_key_element()}={value}" for value in values])
        else:
            choices.append([str(override.input_line)])
    yield from (list(each) for each in itertools.product(*choices))


def compose(
    arguments: Sequence[str], config_dirs: Sequence[str] = (), trusted: bool = True
) -> Composition:
    """Read the files that the arguments select, with trust also of runs, and the values set."""
    overrides = [each for each in parse(arguments) if not each.key_or_group.startswith("hydra")]
    groups = [each for each in overrides if is_group(each)]
    name = _chosen([_file_named(each) for each in groups if each.key_or_group == "config"])
    files = ConfigFiles(search_folders(config_dirs), *(() if trusted else (_expect_of_user,)))
    layers: list[Layer] = []
    for each in sorted(groups, key=lambda each: each.key_or_group != "config"):
        choice = Choice(f"/{each.key_or_group}", _file_named(each), each.package)
        layers += files.layers(choice, str(each.input_line))
    assignments = [_assignment(each) for each in overrides if not is_group(each)]
    return Composition(layers, assignments, name)


def _chosen(names: Sequence[str]) -> str:
    if not names:
        raise ConfigError(
            "no config is given: add config=<file without .yaml>, as in config=quickstart/simclr."
        )
    if len(names) > 1:
        raise ConfigError(
            f"{', '.join(f'config={name}' for name in names)}: config=... selects one file. Add "
            f"others from folders below configs/: +config/FOLDER=FILE."
        )
    return names[0]


def _file_named(override: Override) -> str:
    value = override.value()
    if override.type != OverrideType.ADD and override.key_or_group != "config":
        raise ConfigError(
            f"{COMMAND_LINE}: {override.input_line}: to add a file write "
            f"+{override.key_or_group}=FILE."
        )
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{COMMAND_LINE}: {override.input_line}: expected the name of a file, as in "
            f"{override.key_or_group}=quickstart/simclr."
        )
    return stem(value)


def compose_on(layer: Layer, arguments: Sequence[str], name: str) -> Composition:
    """Read one file and the values that the arguments set. Other files cannot be added."""
    overrides = parse(arguments)
    groups = [str(each.input_line) for each in overrides if is_group(each)]
    if groups:
        raise ConfigError(
            f"{COMMAND_LINE}: {groups[0]}: no file can be added to {layer.origin}, which was "
            f"opened as plain values. Set single values: config.KEY=VALUE."
        )
    return Composition([layer], [_assignment(each) for each in overrides], name)


def _assignment(override: Override) -> Assignment:
    text, new = str(override.input_line), (OverrideType.ADD, OverrideType.FORCE_ADD)
    if override.type == OverrideType.DEL:
        raise ConfigError(f"{COMMAND_LINE}: {text}: nothing can be deleted. Set another value.")
    return Assignment(override.key_or_group, override.value(), text, override.type in new)


# ---- values as KEY=VALUE

_BEFORE_QUOTE = re.compile(r"(\\+)('|\Z)")
_OTHERS = ("true", "false", "null", "nan", "inf")  # which are no text without quotes
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")


def overrides(values: Mapping[str, Any]) -> list[str]:
    """Return `config.OPTIMIZER.num_epochs=5` for `{"OPTIMIZER.num_epochs": 5}`."""
    return [f"config.{key}={text(value)}" for key, value in values.items()]


def text(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {text(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(text, value)) + "]"
        case PurePath():
            return text(str(value))
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case str() if not _PLAIN.fullmatch(value) or value.lower() in _OTHERS:
            # Hydra takes a backslash for an escape only where a quote follows.
            escaped = _BEFORE_QUOTE.sub(r"\1\1\2", value)
            return "'" + escaped.replace("'", "\\'") + "'"
    # Numbers and arrays of numpy and torch.
    return text(value.tolist()) if hasattr(value, "tolist") else str(value)


def typed(given: Sequence[str]) -> list[str]:
    """Return what --set says; `config.` before a key may be left out."""
    return [each if each.startswith("config.") else f"config.{each}" for each in given]
