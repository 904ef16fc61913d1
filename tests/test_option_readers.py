"""Every option that a config accepts is read by somebody: a field without a reader is a defect.

A reader of a field is code that reads an attribute of its name (or an item, or by getattr) of
something that holds the dataclass: a name annotated with it, what `read(config, ...)` returns, the
key under which its section stands, `self` in its own methods, or what was assigned from these.
What `check`, `check_chosen` and `infer` of the dataclasses do with a field is no reading: they would
accept it, and fill it in, for nobody.
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
# Dataclasses of which fields are read at one place, whatever they are called: the place.
READ_AS_A_WHOLE = {
    "GradScalerOptions": ("engine/build.py", "vars(model.AMP_PARAMS.GRAD_SCALER)"),
    "TrunkOptions": ("models/options.py", "vars(self).values()"),
    "RegNetOptions": (
        "models/trunks/options.py",
        "{key: getattr(self, key) for key in keys}",
    ),
    "EfficientNetOptions": ("models/trunks/classy.py", "asdict(options)"),
    "ParamSchedulers": ("optim/options.py", "vars(self.param_schedulers).items()"),
    "SchedulerOptions": ("optim/schedules.py", "getattr(options, name)"),
}
_NO_READERS = ("check", "check_chosen", "infer")


def _words(node: ast.AST) -> set[str]:
    """The names in an expression; of an annotation, which may be a string, too."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.update(re.findall(r"\w+", text))
    return found


def _last(node: ast.AST | None) -> set[str]:
    """What an expression is called: `c` of `a.b.c`, and what it may be an instance or a part of."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(attr=name):
            return {name}
        case ast.Call(func=function, args=arguments):
            return _last(function).union(*map(_last, arguments))
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return {name}
        case ast.Subscript(value=value):
            return _last(value)
        case ast.IfExp() | ast.BoolOp() | ast.DictComp() | ast.ListComp():
            return _words(node)
    return set()


class _Module(ast.NodeVisitor):
    """What a module reads of what, and what its names stand for."""

    def __init__(self, source: str) -> None:
        self.reads: set[tuple[str, frozenset[str]]] = set()
        self.stands_for: list[tuple[str, set[str]]] = []
        self._inside = ""
        self.visit(ast.parse(source))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._inside = self._inside, node.name
        self.generic_visit(node)
        self._inside = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._name(ast.Name(node.name), _words(node.returns) if node.returns else set())
        if node.name not in _NO_READERS and not node.name.endswith("_problems"):
            self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._name(ast.Name(node.arg), _words(node.annotation) if node.annotation else set())

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for each, value in zip(target.elts, node.value.elts):
                    self._name(each, _last(value))
            else:
                self._name(target, _last(node.value))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._name(node.target, _words(node.annotation) | _last(node.value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._name(node.target, _last(node.value))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._name(node.target, _words(node.iter))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._name(node.target, _words(node.iter))
        self.generic_visit(node)

    def _name(self, target: ast.AST, value: set[str]) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        self.stands_for += [(name, value) for each in names for name in _last(each)]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.attr, node.value)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self._read(node.slice.value, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func, node.args:
            case ast.Name(id="getattr"), [of, ast.Constant(value=str(name)), *_]:
                self._read(name, of)
            case ast.Attribute(attr="get", value=of), [ast.Constant(value=str(name)), *_]:
                self._read(name, of)
        self.generic_visit(node)

    def _read(self, field: str, of: ast.AST) -> None:
        owner = _last(of)
        self.reads.add((field, frozenset({self._inside} if owner == {"self"} else owner)))

    def read_of(self, holders: set[str]) -> set[str]:
        """The fields that it reads of what these names hold."""
        known, before = set(holders), 0
        while len(known) > before:
            before = len(known)
            known |= {name for name, value in self.stands_for if value & known}
        return {field for field, owner in self.reads if owner & known}


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
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
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
    classes: dict[type[Any], set[str]], modules: list[_Module]
) -> Iterator[tuple[str, str]]:
    for cls, keys in classes.items():
        # A field that a base class has is read where the base class is, and the other way round.
        related = {
            each.__name__
            for each in (*classes, *filter(dataclasses.is_dataclass, cls.__mro__))
            if issubclass(each, cls) or issubclass(cls, each)
        }
        read = set().union(*(module.read_of(related | keys) for module in modules))
        own = inspect.get_annotations(cls)
        for field in dataclasses.fields(cls):
            name = field.name
            if name in own and name not in read and cls.__name__ not in READ_AS_A_WHOLE:
                yield cls.__name__, name


@pytest.fixture(scope="module")
def classes() -> dict[type[Any], set[str]]:
    return option_classes()


@pytest.fixture(scope="module")
def modules() -> list[_Module]:
    return [_Module(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


def test_every_option_has_a_reader(
    classes: dict[type[Any], set[str]], modules: list[_Module]
) -> None:
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
    through_a_part: int = 0
    filled_in_for_nobody: int = 0
    checked_alone: int = 0
    read_of_another: int = 0


def test_a_field_without_a_reader_is_found() -> None:
    own = (
        "class _Sample:\n"
        "    def infer(self, facts):\n        self.filled_in_for_nobody = facts.ranks\n"
        "    def check(self):\n        return self.checked_alone < 0\n"
        "class Built:\n"
        "    def __init__(self, options: _Sample, other: Other):\n"
        "        self._options = options\n"
        "        self.size = options.used + getattr(options, 'by_name') + other.read_of_another\n"
        "    def run(self):\n        return self._options.through_a_part\n"
    )
    found = without_reader({_Sample: {"SAMPLE"}}, [_Module(own)])
    assert [field for _, field in found] == [
        "filled_in_for_nobody", "checked_alone", "read_of_another",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["MODEL", "DATA", "OPTIMIZER", "CHECKPOINT", "HOOKS", ""])
def test_a_planted_option_is_found(path: str, modules: list[_Module]) -> None:
    """Under a name that no code has, and under one that code reads of other options."""
    cls = sections._SECTIONS[path]
    planted = [("NOBODY_READS_THIS", int, 0), ("temperature", float, 0.1)]
    planted_in = dataclasses.make_dataclass("Planted", planted, bases=(cls,))
    found = set(without_reader({planted_in: {path or "config"}}, modules))
    assert found == {("Planted", "NOBODY_READS_THIS"), ("Planted", "temperature")}
