"""The meaning of each key: the comment above its field in the dataclass that declares it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any


@cache
def meanings(cls: type[Any]) -> dict[str, str]:
    """Return the comments of a dataclass's fields, also of its bases'; some have none."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(each):
            found.update(_comments(each))
    return found


def meaning_of_section(cls: type[Any]) -> str:
    """Return the docstring; "" for the signature that dataclasses without docstring get."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(text.split())


def _comments(cls: type[Any]) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return  # defined without a file, as in a notebook
    lines, (tree, *_) = source.splitlines(), ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = _above(lines, node.lineno - 1)
            if words:
                yield node.target.id, " ".join(words)


def _above(lines: list[str], at: int) -> list[str]:
    first = at
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [line.strip().lstrip("#").strip() for line in lines[first:at]]
