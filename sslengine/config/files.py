"""The YAML files of a run, in the order in which later files override earlier ones.

    config=quickstart/simclr       a file of the first folder that has it
    +config/models=big             a file of a subfolder, which overrides it
    defaults: [/config/base/machine/cpu, other, {models: big}, _self_]

The last line is in a file, and lists the files that it is based on. A name that starts with
/config is relative to the folder of configs, other names to the folder of the file. `optional
models: big` may be missing; `override models: big` replaces the file that an included file chose
for that folder.

A folder of configs may contain the YAML files directly, or in a subfolder `config/`, as in VISSL.

A file's keys are those of `config`, or begin at the root if it has a key `config`. The header
`# @package` says it otherwise, as in Hydra; so do `FOLDER@PACKAGE: NAME`, and folders that are
named like sections (`config/DATA/TRAIN/photos.yaml`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError

from sslengine.config.yaml_text import load
from sslengine.errors import ConfigError, nearest

_SELF = "_self_"
# What is added to a config, and no config by itself.
_FORMS = "forms/"
_GLOBAL = "_global_"
_ROOT = {"config", "engine_name", "node_id"}
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*$")


@dataclass(frozen=True)
class Layer:
    """Values from one place. `tree` is the root: engine_name, node_id and config."""

    origin: str
    tree: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A file that the command line or a `defaults` list names: `group@package: name`."""

    group: (
        str  # relative to the file that names it, or to the folder of configs if it starts with /
    )
    name: str | None
    package: str | None = None
    optional: bool = False
    override: bool = False
    # Written as `group: name`: such a choice can be overridden, and its group sets the package.
    grouped: bool = True


class ConfigFiles:
    """The YAML files of several folders; the first folder that has a file wins.

    expect: called with each file before it is read.
    """

    def __init__(
        self, folders: Sequence[Path], expect: Callable[[Path], None] = lambda file: None
    ) -> None:
        self._expect = expect
        self.folders = [
            folder / "config" if (folder / "config").is_dir() else folder for folder in folders
        ]
        # The file that an `override` entry chooses for a group.
        self._overrides: dict[str, str | None] = {}

    def layers(self, choice: Choice, argument: str) -> list[Layer]:
        """Return the layers of a file that an argument of the command line selects."""
        self._overrides = {}
        return list(self._chosen(choice, "/", "", (argument,)))

    def known(self) -> list[str]:
        found = (
            file.relative_to(folder) for folder in self.folders for file in folder.rglob("*.yaml")
        )
        return sorted({each.with_suffix("").as_posix() for each in found})

    def _chosen(
        self, choice: Choice, parent: str, package: str, inside: tuple[str, ...]
    ) -> Iterator[Layer]:
        """
        parent, package: folder and package of the file that names this one.
        inside: the chain of files whose `defaults` lead to this one.
        """
        group = posixpath.normpath(posixpath.join(parent, choice.group))
        name = self._overrides.get(group, choice.name) if choice.grouped else choice.name
        path = posixpath.normpath(posixpath.join(group, stem(name)))
        file = self.find(path) if name is not None else None
        if file is None:
            if name is not None and not choice.optional:
                raise ConfigError(self._missing(path, inside))
            return
        if path in inside:
            raise ConfigError(
                f"{inside[0]}: `defaults` lists form a cycle: "
                f"{' -> '.join([*inside[inside.index(path) :], path])}."
            )
        self._expect(file)
        tree, header = _read(file)
        package = _place(tree, package, choice) if header is None else header
        folder = group if choice.grouped else posixpath.dirname(path)
        entries = list(_entries(tree.pop("defaults", None), file))
        for each in entries:
            if each is not None and each.override:  # setdefault: an outer file takes precedence
                place = posixpath.normpath(posixpath.join(folder, each.group))
                self._overrides.setdefault(place, each.name)
        for each in entries:
            if each is None:
                found = dict(tree)
                for part in reversed(package.split(".") if package else []):
                    found = {part: found}
                yield Layer(readable_path(file), found)
            elif not each.override:
                yield from self._chosen(each, folder, package, (*inside, path))

    def find(self, path: str) -> Path | None:
        """Return the file of a path such as /config/quickstart/simclr."""
        under = path.removeprefix("/config/") if path.startswith("/config/") else None
        found = (folder / f"{under}.yaml" for folder in self.folders)
        return next((file for file in found if under and file.is_file()), None)

    def _missing(self, path: str, inside: tuple[str, ...]) -> str:
        wanted = path.removeprefix("/config/")
        added = wanted.startswith(_FORMS)
        known = [each for each in self.known() if added or not each.startswith(_FORMS)]
        hint = nearest(wanted, known) or nearest(wanted.rsplit("/", 1)[-1], known)
        by = f"{inside[0]}: " if len(inside) == 1 else f"{inside[-1].removeprefix('/')}: {path}: "
        places = ", ".join(map(str, self.folders))
        return f"{by}there is no such config file. {hint}\n  Searched in: {places}"


def stem(name: Any) -> str:
    """Remove `.yaml`, so that both spellings of a name give one run folder."""
    return str(name).removesuffix(".yaml")


def _place(tree: Mapping[str, Any], package: str, choice: Choice) -> str:
    """Return the package of a file without a header."""
    if _ROOT & tree.keys():
        return ""
    own = choice.package or choice.group.strip("/").replace("/", ".")
    joined = f"{package}.{own.removeprefix(_GLOBAL).strip('.')}".strip(".")
    sections = joined.split(".")[1:]
    return joined if choice.package or (sections and all(map(str.isupper, sections))) else "config"


def _read(file: Path) -> tuple[dict[str, Any], str | None]:
    """Return the file's tree, and the package of its header; None without a header."""
    try:
        text = file.read_text("utf-8")
        tree = load(text)
        if tree is None:
            tree = {}  # comments alone
        if isinstance(tree, dict):
            _expect_no_cycle(tree)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error}). Save it as UTF-8.") from error
    except RecursionError as error:
        raise ConfigError(
            f"{file}: an alias (*NAME) is inside the value that it refers to (&NAME), or values "
            f"are nested too deeply."
        ) from error
    except (ValueError, YAMLError) as error:
        raise ConfigError(f"{file}: not valid YAML. {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: expected keys such as `config:`, got {tree!r:.60}.")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if found := _PACKAGE.match(line):
            return tree, found[1].removeprefix(_GLOBAL).strip(".")
    return tree, None


def _expect_no_cycle(value: Any, above: tuple[int, ...] = ()) -> None:
    if id(value) in above:
        raise RecursionError
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, (dict, list)):
            _expect_no_cycle(each, (*above, id(value)))


def _entries(listed: Any, file: Path) -> Iterator[Choice | None]:
    """Yield the entries of a `defaults` list; None is the file itself."""
    if not isinstance(listed, (list, type(None))):
        raise ConfigError(f"{file}: defaults: expected a list of files, got {listed!r}.")
    for index, entry in enumerate(listed or ()):
        match entry:
            case "_self_":
                yield None
            case str():
                path, _, package = entry.partition("@")
                folder, _, name = path.rpartition("/")
                yield Choice(folder, name, package or None, grouped=False)
            case Mapping() if len(entry) == 1:
                ((key, names),) = entry.items()
                *words, group = str(key).split()
                if not {*words} <= {"optional", "override"}:
                    raise ConfigError(
                        f"{file}: defaults.{index}: expected [optional] [override] FOLDER: NAME, "
                        f"got {key!r}."
                    )
                group, _, package = group.partition("@")
                for name in names if isinstance(names, list) else [names]:
                    yield Choice(
                        group, name, package or None, "optional" in words, "override" in words
                    )
            case _:
                raise ConfigError(
                    f"{file}: defaults.{index}: expected the name of a file, FOLDER: NAME or "
                    f"{_SELF}; got {entry!r}."
                )
    if _SELF not in (listed or ()):
        yield None


def readable_path(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
