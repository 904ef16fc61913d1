"""What a trunk is: a module that gives its features by name.

A trunk of your own names its features and computes those that are wanted:

    @register_trunk("my_trunk", options=MyTrunkOptions)
    class MyTrunk(Trunk):
        feature_names = ("stem", "flatten")

        def __init__(self, options: MyTrunkOptions, in_chans: int = 3) -> None: ...
        def features(self, x, wanted): ...

One whose __init__ has no `in_chans` takes images of three channels.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from torch import Tensor, nn

from sslengine.errors import ConfigError, listing, nearest


class Trunk(nn.Module, ABC):
    """Images (N x C x H x W) in, features out."""

    # What can be asked for; the last is the final feature, given when nothing is asked for.
    feature_names: tuple[str, ...]
    # Names of further tensors that `features` takes by keyword (a mask, say).
    extra_inputs: tuple[str, ...] = ()
    # The parts that are computed one after another, each called as a module, by their names (a
    # regular expression): what a sharded model gathers at a time. None: the trunk as a whole.
    block_names: str | None = None
    # VISSL's parameter names: what to replace in ours, and by what (see re.sub), in this order.
    vissl_names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    # VISSL saves these too, though nothing in them is learned (a regular expression on names).
    vissl_constants: str | None = None
    # Channels of the images; None: not set.
    in_chans: int | None = None

    @abstractmethod
    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        """At least the wanted features, by name. Nothing behind the last one need be computed."""

    def forward(
        self, x: Tensor, out_feat_keys: Sequence[str] = (), **extra: Tensor
    ) -> list[Tensor]:
        """The features asked for, in that order; a name may come twice."""
        if self.in_chans is not None and x.shape[1] != self.in_chans:
            raise ConfigError(
                f"config.MODEL.INPUT_CHANNELS: the trunk takes images of {self.in_chans} "
                f"channels, and got a batch of shape {tuple(x.shape)}."
            )
        if not out_feat_keys:
            last = self.feature_names[-1]
            return [self.find(x, (last,), **extra)[last]]
        self.check_features(out_feat_keys)
        found = self.find(x, frozenset(out_feat_keys), **extra)
        return [found[name] for name in out_feat_keys]

    def find(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        """`features`, also if the trunk has another attribute of that name."""
        return self.features(x, wanted, **extra)

    def check_features(self, names: Sequence[str], where: str = "out_feat_keys") -> None:
        """Raise ConfigError if this trunk has no feature of such a name."""
        for name in names:
            if name not in self.feature_names:
                raise self.unknown_feature(name, where)

    def unknown_feature(self, name: str, where: str, more: Sequence[str] = ()) -> ConfigError:
        """more: other names that it may be meant for."""
        hint = nearest(name, (*self.feature_names, *more))
        text = f"{where}: {type(self).__name__} has no feature {name!r}. {hint}".rstrip()
        return ConfigError(f"{text}\n  Known: {listing(self.feature_names)}")

    def vissl_name(self, name: str) -> str:
        """What VISSL calls the tensor that is `name` in this trunk's state dict.

        Tensors that share a name there are one tensor there, joined along the first dimension.
        """
        for ours, theirs in self.vissl_names:
            name = re.sub(ours, theirs, name)
        return name

    def checkpoint_activations(self, parts: int) -> None:
        """Keep only what passes between so many parts; recompute inside them in backward."""
        raise ConfigError(
            f"config.MODEL.ACTIVATION_CHECKPOINTING: {type(self).__name__} cannot recompute "
            f"its activations; set USE_ACTIVATION_CHECKPOINTING to false."
        )
