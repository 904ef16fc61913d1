"""The same network as a trunk's, in timm and in torchvision.

A twin is built, gets the trunk's tensors, each in its place, and must give the trunk's features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from sslengine.errors import ExportError, listing
from sslengine.export.formats import difference
from sslengine.export.subject import Subject, plain
from sslengine.models.trunks.library import Design


@dataclass(frozen=True)
class Twin:
    design: Design
    network: nn.Module
    # Modules that no argument chooses, as Python code.
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Tensor]:
        return plain(self.network.state_dict())


def fill(subject: Subject, library: str, design: Design, network: nn.Module) -> nn.Module:
    """The network with the trunk's weights, after comparing what it gives."""
    state = subject.trunk.state_dict()
    for ours, theirs in design.renamed:
        state = {re.sub(ours, theirs, name): tensor for name, tensor in state.items()}
    filled(network, state, f"{library}'s {design.name}")
    found = network.eval().requires_grad_(False)(subject.images).numpy()
    whose = f"{library}'s {design.name} with the same weights"
    difference(found, subject.features.numpy(), whose)
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


def find_design(subject: Subject, library: str) -> Design:
    """Return what the library calls the trunk."""
    trunk = cast(Any, subject.trunk)
    design: Design | str | None = getattr(trunk, "designs", {}).get(library)
    if design is None:
        raise ExportError(
            f"{library} has no network like the trunk {subject.options.TRUNK.NAME!r}."
        )
    if isinstance(design, str):
        raise ExportError(
            f"{library} has no network like this trunk with {trunk.section}.{design}."
        )
    return design


def timm_twin(subject: Subject) -> Twin:
    design = find_design(subject, "timm")
    arguments = {"num_classes": 0, "in_chans": subject.channels, **design.arguments}
    import timm  # it takes half a second, and some trunks are refused before it is needed

    try:
        json.dumps(arguments)
        network = timm.create_model(design.name, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ExportError(f"timm cannot make {design.name} of {arguments}: {error}") from error
    return Twin(design, fill(subject, "timm", design, network))
