"""`/data/train-{000..146}.tar` -> all the names that it means, as the package braceexpand has it.

    {a,b,c}         each of them; they may hold braces in their turn, or be empty
    {0..10} {3..0}  numbers up or down; {000..10} with zeros to one width; {0..10..5} in steps
    {a..e}          letters
    \\{ \\, \\}        these characters themselves; so is {a}, which is neither of the above

How many there are is counted before any name is made.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

MOST = 1_000_000  # names
DEEPEST = 20  # braces in braces

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")

# What may stand at one place of a text: a string, one of several texts, one of some numbers.
Node: TypeAlias = "str | list[Text] | _Numbers"
Text: TypeAlias = list[Node]


class _Numbers:
    def __init__(self, first: str, last: str, step: str | None) -> None:
        padded = any(re.match(r"-?0\d", each) for each in (first, last))
        self.width = max(len(first), len(last)) if padded else 0
        self.values = _steps(int(first), int(last), step)

    def __iter__(self) -> Iterator[str]:
        return (f"{value:0{self.width}d}" for value in self.values)


def expand_braces(pattern: str, most: int = MOST) -> list[str]:
    """ValueError: braces without their other half, too deep, or more than `most` names."""
    row = _parse(pattern, DEEPEST)
    count = _count(row)
    if count > most:
        raise ValueError(f"it means {count:,} names; {most:,} are the most")
    return list(_texts(row))


def _steps(first: int, last: int, step: str | None) -> range:
    by = abs(int(step or 1)) or 1
    return range(first, last + 1, by) if first <= last else range(first, last - 1, -by)


def _parse(text: str, deeper: int) -> Text:
    if not deeper:
        raise ValueError(f"more than {DEEPEST} braces in each other")
    row: Text = []
    at = 0
    while at < len(text):
        if text[at] == "}":
            raise ValueError("a } without its {")
        if text[at] == "{":
            end = _closing(text, at)
            row += _group(text[at + 1 : end], deeper - 1)
            at = end + 1
        elif text[at] == "\\":
            row.append(text[at + 1 : at + 2] or "\\")
            at += 2
        else:
            end = next((n for n in range(at, len(text)) if text[n] in "{}\\"), len(text))
            row.append(text[at:end])
            at = end
    return row


def _closing(text: str, at: int) -> int:
    depth = 0
    for place, character in _unescaped(text, at):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return place
    raise ValueError("a { without its }")


def _unescaped(text: str, at: int = 0) -> Iterator[tuple[int, str]]:
    while at < len(text):
        if text[at] == "\\":
            at += 1
        else:
            yield at, text[at]
        at += 1


def _group(inside: str, deeper: int) -> Text:
    """The text between two braces."""
    parts = _parts(inside)
    if len(parts) > 1:
        return [[_parse(part, deeper) for part in parts]]
    numbers, letters = _NUMBERS.fullmatch(inside), _LETTERS.fullmatch(inside)
    if numbers:
        return [_Numbers(*numbers.groups())]
    if letters:
        first, last, step = letters.groups()
        known = string.ascii_uppercase + string.ascii_lowercase
        chosen = _steps(known.index(first), known.index(last), step)
        return [[[known[number]] for number in chosen]]
    return ["{", *_parse(inside, deeper), "}"]


def _parts(inside: str) -> list[str]:
    """Cut at the commas that are in no braces."""
    depth, cuts = 0, [-1]
    for place, character in _unescaped(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            cuts.append(place)
    return [inside[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(inside)], strict=True)]


def _count(row: Text) -> int:
    return math.prod(_choices(node) for node in row)


def _choices(node: Node) -> int:
    if isinstance(node, _Numbers):
        return (node.values[-1] - node.values[0]) // node.values.step + 1
    return sum(map(_count, node)) if isinstance(node, list) else 1


def _texts(row: Text) -> Iterator[str]:
    """With the last node running fastest."""
    for chosen in product(*map(_of_node, row)):
        yield "".join(chosen)


def _of_node(node: Node) -> Sequence[str]:
    if isinstance(node, str):
        return [node]
    if isinstance(node, _Numbers):
        return list(node)
    return [text for row in node for text in _texts(row)]
