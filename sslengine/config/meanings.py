"""The meaning of each key: the comment above its field in the dataclass that declares it.

Of a component without a dataclass: what its docstring says of its arguments, `name: text`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

_ARGUMENT = re.compile(r"\s*(\w+(?:, \w+)*)(?: \(.*?\))?: (.+)")


@cache
def meanings(cls: type[Any]) -> dict[str, str]:
    """Return the comments of a dataclass's fields, also of its bases'; some have none."""
    found: dict[str, str] = {}
    of_arguments: dict[str, dict[str, str]] = {}
    for each in reversed(cls.__mro__):
        if "described_by" in vars(each):
            for key, text in of_docstring(vars(each)["described_by"]):
                of_arguments.setdefault(key, {}).setdefault(text, each.__name__)
        elif "__dataclass_fields__" in vars(each):
            found.update(_comments(each))
    for key, texts in of_arguments.items():
        several = len(texts) > 1
        found[key] = " ".join(f"{its}: {text}" if several else text for text, its in texts.items())
    return found


def of_docstring(thing: Any) -> Iterator[tuple[str, str]]:
    """(argument, meaning) of what a function or a class says of its arguments."""
    docs = [thing.__doc__]
    if isinstance(thing, type):
        docs.append(thing.__init__.__doc__)  # type: ignore[misc]
    names, words = [""], list[str]()
    for line in "\n\n".join(inspect.cleandoc(each or "") for each in docs).splitlines():
        begin = _ARGUMENT.match(line)
        if begin or not line.strip():
            yield from ((name, " ".join(words)) for name in names if name)
            names, words = (begin[1].split(", "), [begin[2]]) if begin else ([""], [])
        else:
            words.append(line.strip())
    yield from ((name, " ".join(words)) for name in names if name)


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
