"""A chance as YAML gives it."""

from __future__ import annotations


def probability(p: float) -> float:
    """`p`, if it is one."""
    if not 0 <= p <= 1:
        raise ValueError(f"a probability lies between 0 and 1; got {p}.")
    return p
