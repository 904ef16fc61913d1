"""The same network as a trunk's, in timm and in torchvision.

A twin is built, gets the trunk's tensors, each in its place, and must give the trunk's features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.errors import ExportError, listing
from sslengine.export.subject import Subject, plain
from sslengine.models.options import ResNetOptions, TrunkOptions

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Design:
    """A library's network by name; `renamed`: our names of tensors, and theirs (see re.sub)."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()
    last: str = "fc"  # torchvision's classifier, in whose place nothing is


@dataclass(frozen=True)
class Twin:
    design: Design
    network: nn.Module

    @property
    def state(self) -> dict[str, Tensor]:
        return plain(self.network.state_dict())


def fill(subject: Subject, library: str, design: Design, network: nn.Module) -> nn.Module:
    """The network with the trunk's weights, after comparing what it gives."""
    state = subject.trunk.state_dict()
    for ours, theirs in design.renamed:
        state = {re.sub(ours, theirs, name): tensor for name, tensor in state.items()}
    filled(network, state, f"{library}'s {design.name}")
    _same_features(subject, library, design, network.eval().requires_grad_(False))
    return network


def filled(network: nn.Module, state: Mapping[str, Tensor], name: str) -> nn.Module:
    """The network with these tensors, each in its place; all places must get one."""
    own = network.state_dict()
    odd = [f"{each} is missing" for each in sorted(own.keys() - state.keys())]
    odd += [f"{each} has no place" for each in sorted(state.keys() - own.keys())]
    odd += [
        f"{each} is {tuple(state[each].shape)}, there {tuple(own[each].shape)}"
        for each in sorted(own.keys() & state.keys())
        if own[each].shape != state[each].shape
    ]
    if odd:
        raise ExportError(f"{name} is another network: {listing(odd, 8)}.")
    network.load_state_dict(state)
    return network


@torch.no_grad()
def _same_features(subject: Subject, library: str, design: Design, network: nn.Module) -> None:
    found, expected = network(subject.images), subject.features
    if found.shape != expected.shape:
        raise ExportError(
            f"{library}'s {design.name} gives {tuple(found.shape)}, the trunk's {subject.layer} is "
            f"{tuple(expected.shape)}."
        )
    difference = (found - expected).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise ExportError(
            f"{library}'s {design.name} with the same weights gives other features than the "
            f"trunk's {subject.layer}: they differ by {difference:.3g}."
        )


def designed(
    options: TrunkOptions, table: Mapping[str, Callable[[TrunkOptions], Design]], library: str
) -> Design:
    if options.NAME not in table:
        raise ExportError(f"{library} has no network like the trunk {options.NAME!r}.")
    return table[options.NAME](options)


def refuse_own_resnets(options: ResNetOptions, library: str) -> None:
    """Raise for a ResNet that no function of a library makes."""
    wrong = ""
    if options.WIDTH_MULTIPLIER != 1:
        wrong = f"WIDTH_MULTIPLIER {options.WIDTH_MULTIPLIER:g}"
    elif options.CHANNELS:
        wrong = f"CHANNELS {options.CHANNELS}"
    elif options.NORM != "BatchNorm":
        wrong = f"NORM {options.NORM}"
    elif options.STEM != "imagenet" and library == "timm":
        wrong = f"STEM {options.STEM}"
    elif options.LAYER4_STRIDE != 2:
        wrong = f"LAYER4_STRIDE {options.LAYER4_STRIDE}"
    if wrong:
        raise ExportError(f"{library} has no ResNet with config.MODEL.TRUNK.RESNETS.{wrong}.")


def is_standard(options: ResNetOptions) -> bool:
    return not options.BLOCKS and options.is_basic() == (options.DEPTH in (18, 34))
