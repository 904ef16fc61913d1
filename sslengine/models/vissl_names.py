"""A trunk's state dict in VISSL's names, and back. The trunk itself says what is called how."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from sslengine.models.trunks.base import Trunk


def to_vissl(trunk: Trunk) -> dict[str, Tensor]:
    """As a checkpoint of VISSL holds it under `model.trunk`."""
    state = trunk.state_dict()
    return {
        theirs: state[ours[0]] if len(ours) == 1 else torch.cat([state[name] for name in ours])
        for theirs, ours in _joined(trunk).items()
    }


def from_vissl(trunk: Trunk, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in this trunk's names; untouched if they have those already.

    A tensor that fits nowhere keeps its name, for the caller to complain about.
    """
    constant = re.compile(trunk.vissl_constants or "(?!)")
    given = {_bare(name): tensor for name, tensor in given.items() if not constant.search(name)}
    own = trunk.state_dict()
    joined = {_bare(theirs): ours for theirs, ours in _joined(trunk).items()}
    # Some names mean one tensor here and another there, so it is all or none.
    if len(own.keys() & given.keys()) >= len(joined.keys() & given.keys()):
        return given
    named: dict[str, Tensor] = {}
    for theirs, tensor in given.items():
        ours = joined.get(theirs, [theirs])
        rows = [len(own[name]) for name in ours] if len(ours) > 1 else []
        if len(ours) == 1:
            named[ours[0]] = tensor
        elif tensor.ndim and len(tensor) == sum(rows):
            named.update(zip(ours, tensor.split(rows), strict=True))
        else:
            named[theirs] = tensor
    return named


def _bare(name: str) -> str:
    """Some trunks hold all that they have under one more name; users write it or leave it out."""
    return name.removeprefix("_feature_blocks.")


def _joined(trunk: Trunk) -> dict[str, list[str]]:
    """VISSL's names, each with the names here whose tensors it joins."""
    joined: dict[str, list[str]] = {}
    for name in trunk.state_dict():
        joined.setdefault(trunk.vissl_name(name), []).append(name)
    return joined
