"""Command line -> layers: the YAML files that hydra selects, then the overrides.

Hydra finds the files (groups, defaults lists, packages) and reads the override
grammar. Merging is ours (merge.py), so that each value remembers the file or the
argument that set it and each mistake can be told with its place.

A config folder may be laid out as VISSL's, with a `config/` folder in it, or hold
the YAML files directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sslengine.dotted import below
from sslengine.errors import ConfigError, nearest

COMMAND_LINE = "command line"
_PRIMARY = "sslengine_defaults"


@dataclass(frozen=True)
class Layer:
    """Values from one place. `tree` is the root: engine_name, node_id and config."""

    origin: str
    tree: dict[str, Any]


@dataclass(frozen=True)
class Assignment:
    """One `key=value` of the command line."""

    path: str
    value: Any
    text: str
    may_be_new: bool = False
    delete: bool = False


@dataclass(frozen=True)
class Composition:
    """What one run was asked for."""

    layers: list[Layer]
    assignments: list[Assignment]
    name: str  # of the config file: quickstart/simclr

    def said(self) -> dict[str, Any]:
        """What the files say together, before there is a schema. Later ones win."""
        tree: dict[str, Any] = {}
        for layer in self.layers:
            _put(tree, layer.tree)
        return tree

    def last_value(self, path: str) -> Any:
        """What `path` was last set to, before there is a schema; None if nothing set it."""
        value = None
        for layer in self.layers:
            value = below(layer.tree, path.split("."), value)
        for assignment in self.assignments:
            if assignment.path == path and not assignment.delete:
                value = assignment.value
        return value


def _put(tree: dict[str, Any], on_top: Mapping[str, Any]) -> None:
    for key, value in on_top.items():
        if isinstance(value, Mapping):
            if not isinstance(tree.get(key), dict):
                tree[key] = {}
            _put(tree[key], value)
        else:
            tree[key] = value


class _GroupFolder(FileConfigSource):  # type: ignore[misc]
    """A folder whose files are the options of the group `config`, without a `config/` in it."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path.removeprefix("group://"))

    @staticmethod
    def scheme() -> str:
        return "group"

    @staticmethod
    def _inside(config_path: str) -> str | None:
        path = config_path.strip("/")
        if path == "config":
            return ""
        return path.removeprefix("config/") if path.startswith("config/") else None

    def load_config(self, config_path: str) -> ConfigResult:
        inside = self._inside(config_path) or config_path
        file = Path(self.path) / f"{_stem(inside)}.yaml"
        try:
            return super().load_config(inside)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8 text ({error}). Save it as UTF-8.") from error
        except (RecursionError, OmegaConfBaseException, YAMLError) as error:
            # OmegaConf has an error of its own since 2.4.
            endless = isinstance(error, RecursionError) or "recursive aliases" in str(error)
            why = f"not valid YAML. {error}"
            if endless:
                why = (
                    "an alias (*NAME) stands inside what it refers to (&NAME), or values are "
                    "nested too deeply."
                )
            raise ConfigError(f"{file}: {why}") from error

    def is_group(self, config_path: str) -> bool:
        inside = self._inside(config_path)
        return config_path == "" or (inside is not None and super().is_group(inside))

    def is_config(self, config_path: str) -> bool:
        inside = self._inside(config_path)
        return inside is not None and super().is_config(inside)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path.strip("/") == "":
            return ["config"] if results_filter in (None, ObjectType.GROUP) else []
        inside = self._inside(config_path)
        entries = sorted((Path(self.path) / inside).iterdir()) if inside is not None else []
        groups = [entry.name for entry in entries if entry.is_dir()]
        files = [entry.stem for entry in entries if entry.suffix == ".yaml"]
        if results_filter is None:
            return groups + files
        return groups if results_filter == ObjectType.GROUP else files


def shipped_configs() -> Path:
    """The YAML that comes with sslengine: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def _loader(folders: Sequence[Path]) -> ConfigLoaderImpl:
    Plugins.instance().register(_GroupFolder)
    ConfigStore.instance().store(
        _PRIMARY, {"defaults": ["_self_", {"config": "???"}]}, provider="sslengine"
    )
    search_path = ConfigSearchPathImpl()
    search_path.append("hydra", "pkg://hydra.conf")
    for folder in folders:
        inside = folder / "config"
        search_path.append(str(folder), f"group://{inside if inside.is_dir() else folder}")
    search_path.append("schema", "structured://")
    return ConfigLoaderImpl(search_path)


def search_folders(config_dirs: Sequence[str]) -> list[Path]:
    """Where configs are looked for, first wins: --config-dir, ./configs, sslengine's own."""
    chosen = []
    for given in config_dirs:
        folder = Path(given).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {given}: there is no such folder.")
        chosen.append(folder)
    local = Path.cwd() / "configs"
    candidates = [*chosen, *([local] if local.is_dir() else []), shipped_configs()]
    return list(dict.fromkeys(candidates))


def is_group(override: Override) -> bool:
    """Does it select a file (`config=...`, `+config/models=...`), or set a value?"""
    return override.key_or_group == "config" or override.key_or_group.startswith("config/")


def parse(arguments: Sequence[str]) -> list[Override]:
    try:
        overrides = OverridesParser.create().parse_overrides(list(arguments))
    except HydraException as error:
        detail = str(error).splitlines()[0]
        bare = next((each for each in arguments if "=" not in each and each[:1] != "~"), None)
        if bare is not None and not bare.startswith("config."):
            raise ConfigError(
                f"{COMMAND_LINE}: {bare!r} is no KEY=VALUE. A file is named by config={_stem(bare)}"
            ) from error
        raise ConfigError(
            f"{COMMAND_LINE}: {detail}\n  Write KEY=VALUE; quote a value that holds spaces, "
            f"commas or braces: \"config.CHECKPOINT.DIR='my dir'\"."
        ) from error
    return list(overrides)


def sweep(arguments: Sequence[str]) -> Iterator[list[str]]:
    """`a=1,2 b=3,4` -> four argument lists; without a sweep, the arguments as they are."""
    choices = []
    for override in parse(arguments):
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
            choices.append([f"{override.get_key_element()}={value}" for value in values])
        else:
            choices.append([str(override.input_line)])
    yield from (list(each) for each in itertools.product(*choices))


def compose(arguments: Sequence[str], config_dirs: Sequence[str] = ()) -> Composition:
    """Read the files that the arguments select, and the values they set."""
    overrides = [each for each in parse(arguments) if not each.key_or_group.startswith("hydra")]
    groups = [str(each.input_line) for each in overrides if is_group(each)]
    selected = [each for each in overrides if is_group(each) and each.type != OverrideType.DEL]
    name = _chosen([_file_named(each) for each in selected if each.key_or_group == "config"])
    loader = _loader(search_folders(config_dirs))
    try:
        defaults = loader.compute_defaults_list(_PRIMARY, groups, RunMode.RUN).defaults
        layers = [
            _layer(loader, default.config_path, default.package)
            for default in defaults
            if default.config_path and default.config_path.startswith("config/")
        ]
    except RecursionError as error:
        raise ConfigError(
            f"config={name}: `defaults` lists name each other in a circle, or a file names itself."
        ) from error
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"config={name}: not valid YAML. {error}") from error
    except HydraException as error:
        raise ConfigError(_missing_file(loader, groups, error)) from error
    found = {_stem(default.config_path) for default in defaults}
    for each in selected:  # a folder that is not there is passed over by hydra
        if f"{each.key_or_group}/{_file_named(each)}" not in found:
            raise ConfigError(_missing_file(loader, [str(each.input_line)]))
    assignments = [_assignment(each) for each in overrides if not is_group(each)]
    return Composition(layers, assignments, name)


def _chosen(names: Sequence[str]) -> str:
    if not names:
        raise ConfigError(
            "no config was named: add config=<file without .yaml>, as in config=quickstart/simclr."
        )
    if len(names) > 1:
        raise ConfigError(
            f"{', '.join(f'config={name}' for name in names)}: config=... names one file. What "
            f"comes on top of it lies in a folder below configs/: +config/FOLDER=FILE."
        )
    return names[0]


def _file_named(override: Override) -> str:
    value = override.value()
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{COMMAND_LINE}: {override.input_line}: expected the name of a file, as in "
            f"{override.key_or_group}=quickstart/simclr."
        )
    return _stem(value)


def compose_on(layer: Layer, arguments: Sequence[str], name: str) -> Composition:
    """Values that are typed on top of one file. No other file is looked for."""
    overrides = parse(arguments)
    groups = [str(each.input_line) for each in overrides if is_group(each)]
    if groups:
        raise ConfigError(
            f"{COMMAND_LINE}: {groups[0]}: no file can be put on top of {layer.origin}, which was "
            f"opened as plain values. Set single values: config.KEY=VALUE."
        )
    return Composition([layer], [_assignment(each) for each in overrides], name)


def _stem(name: Any) -> str:
    """Both are taken; one run must not have two folders."""
    return str(name).removesuffix(".yaml")


def _layer(loader: ConfigLoaderImpl, config_path: str, package: str | None) -> Layer:
    result = loader.repository.load_config(config_path)
    assert result is not None  # hydra has just found it
    folder = result.path.split("://", 1)[-1]
    file = _readable(Path(folder) / f"{_stem(config_path.removeprefix('config/'))}.yaml")
    tree = OmegaConf.to_container(result.config, resolve=False)
    if package and isinstance(tree, dict) and "config" in tree:
        raise ConfigError(
            f"{file}: its first line has to be\n  # @package _global_\n"
            f"  Without it, all that the file says is looked for below {package!r}."
        )
    for name in reversed([part for part in (package or "").split(".") if part]):
        tree = {name: tree}
    return Layer(file, tree)  # type: ignore[arg-type]


def _readable(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _assignment(override: Override) -> Assignment:
    return Assignment(
        path=override.key_or_group,
        value=None if override.type == OverrideType.DEL else override.value(),
        text=str(override.input_line),
        may_be_new=override.type in (OverrideType.ADD, OverrideType.FORCE_ADD),
        delete=override.type == OverrideType.DEL,
    )


def _missing_file(
    loader: ConfigLoaderImpl, groups: list[str], error: HydraException | None = None
) -> str:
    known = list(_options(loader, "config"))
    for group in groups:
        key, _, value = group.lstrip("+").partition("=")
        wanted = f"{key}/{value}".removeprefix("config/")
        if value and wanted not in known:
            hint = nearest(wanted, known) or nearest(wanted.rsplit("/", 1)[-1], known)
            places = ", ".join(
                str(source.provider)
                for source in loader.repository.get_sources()
                if source.scheme() == "group"
            )
            return f"{group}: there is no such config file. {hint}\n  Looked in: {places}"
    return str(error or f"{', '.join(groups)}: there is no such config file.")


def _options(loader: ConfigLoaderImpl, group: str) -> Iterator[str]:
    repository = loader.repository
    for name in repository.get_group_options(group, results_filter=ObjectType.CONFIG):
        yield f"{group}/{name}".removeprefix("config/")
    for name in repository.get_group_options(group, results_filter=ObjectType.GROUP):
        yield from _options(loader, f"{group}/{name}")
