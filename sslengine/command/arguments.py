"""Declare an argument once: its flag, its help, and its name in Python.

    ARGUMENTS = [Argument("data"), Argument("--epochs", kind=int, least=1), DEVICE]
    make_parser(__name__).parse_args(["photos", "--epochs=3"]).epochs
    collect(ARGUMENTS, {"data": "photos", "epochs": 3}).epochs     the same of a call in Python

A verb's file has its ARGUMENTS. The function of Python that does the same has a signature of its
own, for editors; a test compares the two. Below are the arguments of several verbs, and what a
file or folder that an argument names must be.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sslengine import catalog
from sslengine.config.compose import overrides
from sslengine.config.options import DEVICES
from sslengine.errors import (
    ConfigError,
    MissingCheckpointError,
    OutputError,
    UnknownNameError,
    listing,
    nearest,
)

assert catalog  # importing it declares all names, of which verbs list and check some


@dataclass(frozen=True)
class Argument:
    """An argument of a verb. Without a dash before its name it is positional."""

    flag: str
    help: str = ""
    kind: Callable[[str], Any] = str  # bool: the flag has no value
    metavar: str | None = None
    default: Any = None
    choices: Sequence[str] | None = None
    least: int | None = None  # the smallest number that it may be
    repeats: bool = False  # each time it is given adds a value
    nargs: str | None = None
    required: bool = False
    parameter: str = ""  # its name in Python, if that is not the flag's
    python: bool = True  # may a call in Python give it?
    listed: str = ""  # the list of `sslengine list` that has its names
    group: str = ""  # the title below which --help has it

    def __post_init__(self) -> None:
        if self.kind is bool:
            object.__setattr__(self, "default", False)

    @property
    def name(self) -> str:
        return self.parameter or self.flag.lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        options: dict[str, Any] = {"help": self.help or None}
        if self.flag.startswith("-"):
            options |= {"dest": self.name, "required": self.required}
        if self.kind is bool:
            parser.add_argument(self.flag, action="store_true", **options)
            return
        more = {"metavar": self.metavar, "choices": self.choices, "nargs": self.nargs}
        options |= {key: value for key, value in more.items() if value is not None}
        if self.repeats:
            options["action"] = "append"
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        parser.add_argument(self.flag, type=self._reader(), default=default, **options)

    def _reader(self) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            return self.checked(self.kind(text))

        read.__name__ = getattr(self.kind, "__name__", "value")  # argparse's messages have it
        return read

    def checked(self, value: Any) -> Any:
        """Return the value; raise a ConfigError if it is a number below `least`."""
        if value is not None and self.least is not None and value < self.least:
            raise ConfigError(f"{self.flag}: expected {self.least} or more, got {value}.")
        return value

    def read_call(self, value: Any) -> Any:
        """Return what a call in Python gives as the command line would have it."""
        if self.repeats and value is not None:
            values = overrides(value) if isinstance(value, Mapping) else value
            return [values] if isinstance(values, str) else list(values)
        return self.checked(os.fspath(value) if isinstance(value, os.PathLike) else value)


def build_parser(
    verb: str, text: str | None, arguments: Sequence[Argument]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"sslengine {verb}", description=text, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for each in arguments:
        if each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        each.add_to(groups[each.group])
    return parser


def make_parser(module: str) -> argparse.ArgumentParser:
    """Build the parser of a verb from the docstring and the ARGUMENTS of its module."""
    file: Any = sys.modules[module]
    return build_parser(module.rpartition(".")[2], file.__doc__, file.ARGUMENTS)


def collect(arguments: Sequence[Argument], given: Mapping[str, Any]) -> argparse.Namespace:
    """Return what a call in Python gives, by the names that the parser has."""
    values = {each.name: given.get(each.name, each.default) for each in arguments}
    return argparse.Namespace(
        **{each.name: each.read_call(values[each.name]) for each in arguments}
    )


RUN = Argument("run", "the folder of a run", Path, "RUN")
IMAGE_COLUMN = Argument(
    "--image-column", "of a table: what holds the images, or their paths", metavar="NAME"
)
LABEL_COLUMN = Argument(
    "--label-column",
    "what holds the labels; given twice or more: a column of 0 and 1 for each class",
    metavar="NAME",
    repeats=True,
)
PLUGINS = Argument(
    "--plugin", "a module of yours that registers components", metavar="MODULE", default=(),
    repeats=True, parameter="plugins",
)  # fmt: skip
NETWORK = Argument(
    "--network", "student, teacher, or the name of one of several students", metavar="NAME",
    default="auto",
)  # fmt: skip
DEVICE = Argument("--device", default="auto", choices=DEVICES)
WORKERS = Argument("--workers", "processes that load images", int, "N", least=0)
VALUES = Argument(
    "--set", "any key of the config", metavar="KEY=VALUE", default=(), repeats=True,
    parameter="values",
)  # fmt: skip
CONFIG_DIR = Argument("--config-dir", metavar="DIR", default=(), repeats=True)
TRUST_CONFIG = Argument("--trust-config", "allow config.yaml to run code", bool)
JSON = Argument("--json", "print the same as one JSON document", bool, python=False)


# ---- what a name, a file or a folder that an argument has must be


def expect_known(name: str, known: Collection[str], what: str) -> None:
    """Raise an UnknownNameError with the nearest name. what: the option, and what it names."""
    if name not in known:
        raise UnknownNameError(
            f"{what} {name!r}. {nearest(name, known)}\n  There are: {listing(known)}"
        )


def expect_run(folder: Path) -> None:
    """Raise a MissingCheckpointError if it is no run's folder; torch is not imported for it."""
    if not folder.is_dir():
        raise MissingCheckpointError(f"{folder}: there is no such folder of a run.")
    if not (folder / "config.yaml").is_file():
        raise MissingCheckpointError(f"{folder} has no config.yaml: it is not the folder of a run.")


def expect_weights(path: str | Path, option: str) -> None:
    """Raise a MissingCheckpointError if the file or folder of weights is not there."""
    from sslengine.data.decode.files import how_far

    if not str(path):
        raise MissingCheckpointError(f"{option}: expected a file or a folder, got an empty text.")
    if not Path(path).exists():
        raise MissingCheckpointError(
            f"{option} {Path(path)}: it is not there: {how_far(Path(path))}"
        )


def expect_new(file: Path, option: str = "") -> None:
    """Raise an OutputError if something has this name: nothing is overwritten."""
    if os.path.lexists(file):
        raise OutputError(
            f"{option} {file}: it is there already. Give another name, or remove it.".lstrip()
        )


def expect_writable(file: Path, option: str = "") -> None:
    """Raise an OutputError if the file is not new, or its folder is not there or not writable."""
    expect_new(file, option)
    folder = file.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{option} {file}: there is no folder {folder}.".lstrip())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {file}: the folder {folder} is not writable.".lstrip())


# ---- --json: stdout is one document, and all else that is printed goes to stderr


def print_document(content: Any) -> None:
    """Print the document. Not-a-number and infinity, which JSON lacks, are null."""
    print(json.dumps(_plain(content), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


@contextmanager
def keep_apart(wanted: bool) -> Iterator[None]:
    """Send to stderr what this process and its children print meanwhile, if that is wanted."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
