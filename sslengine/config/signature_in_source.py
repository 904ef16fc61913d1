"""The arguments of an installed class, from its source: nothing is imported."""

from __future__ import annotations

import ast
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path


@cache
def folder_of(package: str) -> Path | None:
    """None: it is not installed."""
    spec = PathFinder.find_spec(package)
    found = spec and spec.submodule_search_locations
    return Path(next(iter(found))) if found else None


@cache
def arguments_of(path: str) -> ast.arguments | None:
    """Of the `__init__` that a class, such as `torch.optim.SGD`, has itself; None: not found."""
    module, _, name = path.rpartition(".")
    file = _file(module)
    if file is None:
        return None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.ClassDef() if statement.name == name:
                return _of_init(statement)
            case ast.ImportFrom(names=names) if any(_gives(each, name) for each in names):
                origin = resolve_name("." * statement.level + (statement.module or ""), package)
                if found := arguments_of(f"{origin}.{name}"):
                    return found
    return None


def _file(module: str) -> Path | None:
    package, *inner = module.split(".")
    root = folder_of(package)
    place = root and root.joinpath(*inner)
    files = (place / "__init__.py", place.with_suffix(".py")) if place else ()
    return next((each for each in files if each.is_file()), None)


def _gives(alias: ast.alias, name: str) -> bool:
    return alias.name == "*" or (alias.asname or alias.name) == name


def _of_init(statement: ast.ClassDef) -> ast.arguments | None:
    methods = (each for each in statement.body if isinstance(each, ast.FunctionDef))
    return next((each.args for each in methods if each.name == "__init__"), None)
