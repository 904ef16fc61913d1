"""Every option that a config accepts is read by somebody: a field without a reader is a defect.

A reader of a field is a module that reads an attribute of its name (or names it in a string, as
for getattr) and that names the dataclass, one derived from it, or the key under which its section
stands. What `check`, `check_chosen` and `infer` of the dataclasses do with a field is no reading:
they would accept it, and fill it in, for nobody.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sslengine import catalog, registry
from sslengine.config import sections
from sslengine.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sslengine"
# Dataclasses whose fields are all read at one place, whatever they are called: the place.
READ_AS_A_WHOLE = {
    "GradScalerOptions": ("task/build.py", "vars(amp.GRAD_SCALER)"),
    "TrunkOptions": ("models/build.py", "vars(options.TRUNK).values()"),
    "EfficientNetOptions": ("models/trunks/efficientnet.py", "asdict(options)"),
    "SchedulerOptions": ("optim/schedules.py", "getattr(options, name)"),
}
_NO_READERS = ("check", "check_chosen", "infer")


class _Names(ast.NodeVisitor):
    """What a module reads, and what it names."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.named: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in _NO_READERS and not node.name.endswith("_problems"):
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.named.add(node.name)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.named.add(node.attr)
        if isinstance(node.ctx, ast.Load):
            self.read.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and " " not in node.value:
            self.read.update(re.findall(r"\w+", node.value))
            self.named.update(re.findall(r"\w+", node.value))

    def visit_Name(self, node: ast.Name) -> None:
        self.named.add(node.id)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.named.update(alias.name for alias in node.names)


def names_in(source: str) -> _Names:
    names = _Names()
    names.visit(ast.parse(source))
    return names


def _with_nested(cls: type[Any], keys: tuple[str, ...]) -> Iterator[tuple[type[Any], str]]:
    for key in keys:
        yield cls, key
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        for each in (hints[field.name], *typing.get_args(hints[field.name])):
            if isinstance(each, type) and dataclasses.is_dataclass(each):
                yield from _with_nested(each, (field.name,))


def option_classes() -> dict[type[Any], set[str]]:
    """All dataclasses that YAML is read into, and the keys under which they stand."""
    assert catalog
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        # Those that declare options. To import the others would take long.
        if "@section(" in source or ("options=" in source and "@dataclass" in source):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    ours = [(path, cls) for path, cls in sections._SECTIONS.items()]
    for each in vars(registry).values():
        if isinstance(each, Registry):
            ours += [("", cls) for cls in each._options.values() if dataclasses.is_dataclass(cls)]
    found: dict[type[Any], set[str]] = {}
    for path, cls in ours:
        if cls.__module__.startswith("sslengine."):
            for nested, key in _with_nested(cls, (path.rpartition(".")[2] or "config",)):
                found.setdefault(nested, set()).add(key)
    return found


def without_reader(
    classes: dict[type[Any], set[str]], modules: dict[str, _Names]
) -> Iterator[tuple[str, str]]:
    for cls, keys in classes.items():
        # A field that a base class has is read where the base class is.
        own = set(inspect.get_annotations(cls))
        related = {each.__name__ for each in classes if issubclass(each, cls)} | {cls.__name__}
        for field in dataclasses.fields(cls):
            read = any(
                field.name in names.read and names.named & (related | keys)
                for names in modules.values()
            )
            if field.name in own and not read and cls.__name__ not in READ_AS_A_WHOLE:
                yield cls.__name__, field.name


@pytest.fixture(scope="module")
def classes() -> dict[type[Any], set[str]]:
    return option_classes()


def test_every_option_has_a_reader(classes: dict[type[Any], set[str]]) -> None:
    modules = {str(path): names_in(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert len(classes) > 60
    assert list(without_reader(classes, modules)) == []


@pytest.mark.parametrize("name", READ_AS_A_WHOLE)
def test_what_is_read_as_a_whole_is(name: str, classes: dict[type[Any], set[str]]) -> None:
    assert name in {cls.__name__ for cls in classes}
    file, text = READ_AS_A_WHOLE[name]
    assert text in (PACKAGE / file).read_text()


@dataclasses.dataclass
class _Sample:
    used: int = 0
    by_name: int = 0
    filled_in_for_nobody: int = 0
    checked_alone: int = 0
    read_of_another: int = 0


def test_a_field_without_a_reader_is_found() -> None:
    own = (
        "class _Sample:\n"
        "    def infer(self, facts):\n        self.filled_in_for_nobody = facts.ranks\n"
        "    def check(self):\n        return self.checked_alone < 0\n"
        "def build(options: _Sample):\n    return options.used, getattr(options, 'by_name')\n"
    )
    other = "def build(options):\n    return options.read_of_another\n"
    modules = {"own": names_in(own), "other": names_in(other)}
    assert [field for _, field in without_reader({_Sample: {"SAMPLE"}}, modules)] == [
        "filled_in_for_nobody", "checked_alone", "read_of_another",
    ]  # fmt: skip
