"""The YAML files that a run is made of, in the order in which one lies on top of another.

    config=quickstart/simclr       a file of the first folder that has it
    +config/models=big             on top of it, a file of a folder below
    defaults: [/config/base/machine/cpu, other, {models: big}, _self_]

The last is a line of a file and names those that it is based on: a name that begins with /config
is looked for from the top, others beside the file. `optional models: big` may be missing, and
`override models: big` takes the place of what a file further down chose for that folder.

A folder of configs may be laid out as VISSL's, with a `config/` folder in it, or hold the YAML
files directly.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sslengine.errors import ConfigError, nearest

_SELF = "_self_"
_GLOBAL = "_global_"
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*$")


@dataclass(frozen=True)
class Layer:
    """Values from one place. `tree` is the root: engine_name, node_id and config."""

    origin: str
    tree: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A file that the command line or a `defaults` list names: `group@package: name`."""

    group: str  # beside the file that names it; from the top if it begins with /
    name: str | None
    package: str | None = None
    optional: bool = False
    override: bool = False
    # The names of a group can be overridden, and set its package.
    grouped: bool = True


class Files:
    """Those of some folders; the first folder that has a file wins."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = [
            folder / "config" if (folder / "config").is_dir() else folder for folder in folders
        ]
        # What takes the place of the choice of a group.
        self._instead: dict[str, str | None] = {}

    def layers(self, choice: Choice, typed: str) -> list[Layer]:
        """Of a file that was named on the command line, by what was typed."""
        self._instead = {}
        return list(self._chosen(choice, "/", "", (typed,)))

    def known(self) -> list[str]:
        found = (
            file.relative_to(folder) for folder in self.folders for file in folder.rglob("*.yaml")
        )
        return sorted({each.with_suffix("").as_posix() for each in found})

    def _chosen(
        self, choice: Choice, beside: str, package: str, inside: tuple[str, ...]
    ) -> Iterator[Layer]:
        """beside, package: of the file that names it; inside: all files that it is in."""
        group = posixpath.normpath(posixpath.join(beside, choice.group))
        name = self._instead.get(group, choice.name) if choice.grouped else choice.name
        path = posixpath.normpath(posixpath.join(group, stem(name)))
        file = self._find(path) if name is not None else None
        if file is None:
            if name is not None and not choice.optional:
                raise ConfigError(self._missing(path, inside))
            return
        if path in inside:
            raise ConfigError(
                f"{inside[0]}: `defaults` lists name each other in a circle, or a file names "
                f"itself: {' -> '.join([*inside[inside.index(path) :], path])}."
            )
        tree, header = _read(file)
        own = choice.package or choice.group.strip("/").replace("/", ".")
        package = _joined(package, own) if header is None else header
        folder = group if choice.grouped else posixpath.dirname(path)
        entries = list(_entries(tree.pop("defaults", None), file))
        for each in entries:
            if each is not None and each.override:  # a file further out has the say
                place = posixpath.normpath(posixpath.join(folder, each.group))
                self._instead.setdefault(place, each.name)
        for each in entries:
            if each is None:
                yield _layer(file, tree, package)
            elif not each.override:
                yield from self._chosen(each, folder, package, (*inside, path))

    def _find(self, path: str) -> Path | None:
        under = path.removeprefix("/config/") if path.startswith("/config/") else None
        found = (folder / f"{under}.yaml" for folder in self.folders)
        return next((file for file in found if under and file.is_file()), None)

    def _missing(self, path: str, inside: tuple[str, ...]) -> str:
        wanted, known = path.removeprefix("/config/"), self.known()
        hint = nearest(wanted, known) or nearest(wanted.rsplit("/", 1)[-1], known)
        by = f"{inside[0]}: " if len(inside) == 1 else f"{inside[-1].removeprefix('/')}: {path}: "
        places = ", ".join(map(str, self.folders))
        return f"{by}there is no such config file. {hint}\n  Looked in: {places}"


def stem(name: Any) -> str:
    """Both are taken; one run must not have two folders."""
    return str(name).removesuffix(".yaml")


def _joined(package: str, own: str) -> str:
    own = own.removeprefix(_GLOBAL).strip(".")
    return f"{package}.{own}".strip(".")


def _read(file: Path) -> tuple[dict[str, Any], str | None]:
    """What stands in the file, and the package that its first lines say."""
    try:
        text = file.read_text("utf-8")
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error}). Save it as UTF-8.") from error
    except (RecursionError, OmegaConfBaseException, YAMLError) as error:
        # OmegaConf has an error of its own since 2.4.
        endless = isinstance(error, RecursionError) or "recursive aliases" in str(error)
        why = f"not valid YAML. {error}"
        if endless:
            why = (
                "an alias (*NAME) stands inside what it refers to (&NAME), or values are nested "
                "too deeply."
            )
        raise ConfigError(f"{file}: {why}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: expected keys such as `config:`, got {tree!r:.60}.")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if found := _PACKAGE.match(line):
            return tree, found[1].removeprefix(_GLOBAL).strip(".")  # type: ignore[return-value]
    return tree, None  # type: ignore[return-value]


def _entries(listed: Any, file: Path) -> Iterator[Choice | None]:
    """Of a `defaults` list; None: the file itself."""
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


def _layer(file: Path, tree: Mapping[str, Any], package: str) -> Layer:
    origin = readable_path(file)
    if package and "config" in tree:
        raise ConfigError(
            f"{origin}: its first line has to be\n  # @package _global_\n"
            f"  Without it, all that the file says is looked for below {package!r}."
        )
    found = dict(tree)
    for name in reversed([part for part in package.split(".") if part]):
        found = {name: found}
    return Layer(origin, found)


def readable_path(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
