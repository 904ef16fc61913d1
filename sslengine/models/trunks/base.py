"""The base class of trunks: modules that return features by name.

A custom trunk lists its features and computes those that are requested:

    @register_trunk("my_trunk", options=MyTrunkOptions)
    class MyTrunk(Trunk):
        feature_names = ("stem", "flatten")

        def __init__(self, options: MyTrunkOptions, in_chans: int = 3) -> None: ...
        def features(self, x, wanted): ...

A trunk whose __init__ has no `in_chans` takes images of three channels.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError, listing, nearest

# Between two features that are concatenated.
JOIN = "+"
# Before the name of a submodule: its output, where the bare name is another feature.
OUTPUT = "output of "


def single_features(names: Sequence[str]) -> Sequence[str]:
    """Return the names with `a+b` as two."""
    if not any(JOIN in name for name in names):
        return names
    return [part for name in names for part in name.split(JOIN)]


def _named(found: Mapping[str, Tensor], name: str) -> Tensor:
    if JOIN not in name:
        return found[name]
    return torch.cat([found[part] for part in name.split(JOIN)], dim=1)


class Trunk(nn.Module, ABC):
    """Images (N x C x H x W) in, features out."""

    # The features that can be requested; the last is the default, the final feature.
    feature_names: tuple[str, ...]
    # Names of other tensors that `features` takes as keyword arguments (a mask, say).
    extra_inputs: tuple[str, ...] = ()
    # A regular expression for the names of the blocks: modules that run one after another. A
    # sharded model gathers one block at a time. None: the trunk has no blocks.
    block_names: str | None = None
    # (pattern, replacement) pairs for re.sub, in order: from our parameter names to VISSL's.
    vissl_names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    # A regular expression for the names of buffers that only VISSL saves; they are constants.
    vissl_constants: str | None = None
    # Channels of the images; None: any.
    in_chans: int | None = None

    @abstractmethod
    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        """Return at least the wanted features, by name. Later layers need not be computed."""

    def forward(
        self, x: Tensor, out_feat_keys: Sequence[str] = (), **extra: Tensor
    ) -> list[Tensor]:
        """Return the requested features in that order; a name may occur twice.

        `a+b`, such as concatCLS4+lastPOOL, is the concatenation of two features N x C.
        """
        if self.in_chans is not None and x.shape[1] != self.in_chans:
            raise ConfigError(
                f"config.MODEL.INPUT_CHANNELS: the trunk takes images of {self.in_chans} "
                f"channels, and got a batch of shape {tuple(x.shape)}."
            )
        names = out_feat_keys or self.feature_names[-1:]
        single = single_features(names)
        self.check_features(single)
        # In the order asked, not a set's: gradients of layers that features share are summed by it,
        # and the order of a set of names differs from process to process.
        found = self.find(x, tuple(dict.fromkeys(single)), **extra)
        return [_named(found, name) for name in names]

    def find(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        """Call `features`; a trunk with another attribute of that name overrides this."""
        return self.features(x, wanted, **extra)

    def check_features(self, names: Sequence[str], where: str = "out_feat_keys") -> None:
        """Raise ConfigError if the trunk lacks one of these features."""
        for name in names:
            if name not in self.feature_names:
                raise self.unknown_feature(name, where)

    def unknown_feature(self, name: str, where: str, more: Sequence[str] = ()) -> ConfigError:
        """Return the error for an unknown feature; `more`: other names that may be suggested."""
        hint = nearest(name, (*self.feature_names, *more))
        text = f"{where}: {type(self).__name__} has no feature {name!r}. {hint}".rstrip()
        return ConfigError(f"{text}\n  Known: {listing(self.feature_names)}")

    def vissl_name(self, name: str) -> str:
        """Return VISSL's name for the tensor `name` of this trunk's state dict.

        If several tensors have one name in VISSL, VISSL's tensor is their concatenation along the
        first dimension.
        """
        for ours, theirs in self.vissl_names:
            name = re.sub(ours, theirs, name)
        return name

    def checkpoint_activations(self) -> None:
        """Keep the inputs of the trunk's blocks alone, and recompute the blocks in backward."""
        raise ConfigError(
            f"config.MODEL.ACTIVATION_CHECKPOINTING: {type(self).__name__} cannot recompute "
            f"its activations; set USE_ACTIVATION_CHECKPOINTING to false."
        )


def dense_feature(trunk: Trunk) -> str:
    """Name what a trunk has of places: a vision transformer's patch tokens, or the last map."""
    pooled = ("flatten", "lastCLS", "dropout")
    names = [each for each in trunk.feature_names if not (each in pooled or "avg" in each)]
    tokens = (each for each in names if each in ("lastPATCH", "lastMAP"))
    return next(tokens, (names or trunk.feature_names)[-1])


# ---- the trunk of a custom model

# The attributes that are looked at, unless the model's `trunk_part` names a submodule.
TRUNK_NAMES = ("trunk", "backbone", "encoder")


class PlainTrunk(Trunk):
    """Any network as a trunk: its output is the one feature; of several outputs the last."""

    feature_names = ("output",)

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        output: Any = self.network(x)
        while not isinstance(output, Tensor):
            output = list(output.values() if isinstance(output, Mapping) else output)[-1]
        return {"output": output}


def find_trunk(model: nn.Module) -> nn.Module | None:
    """Return the part of a model whose output are its features; None: it has none."""
    parts = dict(model.named_modules(remove_duplicate=False))
    named = getattr(model, "trunk_part", "")
    return next(
        (parts[name] for name in ([named] if named else TRUNK_NAMES) if name in parts), None
    )
