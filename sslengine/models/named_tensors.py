"""Tensors by their dotted names: those of a part, those that two sets differ in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from torch import Tensor

from sslengine.distributed.sharding import copy_into
from sslengine.errors import listing

T = TypeVar("T")

MOST_SHAPES = 8  # that an error lists


def flat(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        f"{part}.{name}" if name else part: tensor
        for part, tensors in parts.items()
        for name, tensor in (tensors or {}).items()
    }


def part_of(named: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith(f"{part}.")}


def beside_trunk(named: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in named.items() if not name.startswith("trunk.")}


def without(named: Mapping[str, Tensor], fragments: Sequence[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if not skipped(name, fragments)}


def skipped(name: str, fragments: Sequence[str]) -> bool:
    return any(fragment in name for fragment in fragments)


def copy_tensors(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], names: Iterable[str]
) -> None:
    for name in names:
        copy_into(expected[name], given[name])


def mismatches(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    problems = []
    missing, unexpected = set(expected) - set(given), set(given) - set(expected)
    if missing:
        problems.append(f"missing: {listing(missing)}")
    if unexpected:
        problems.append(f"not of this model: {listing(unexpected)}")
    for name in sorted(missing)[:3]:
        alike = [each for each in unexpected if given[each].shape == expected[name].shape]
        problems += [f"perhaps {each} is {name}" for each in get_close_matches(name, alike, n=1)]
    return problems + shape_problems(expected, given)


def shape_problems(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    found = [
        f"{name}: shape {tuple(given[name].shape)} in the file, {tuple(tensor.shape)} in the model"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    more = len(found) - MOST_SHAPES
    return found if more <= 0 else [*found[:MOST_SHAPES], f"and {more} others of another shape"]
