"""Any network of a library as a trunk, with the library's names for its parameters and parts.

The network itself becomes the trunk: its class is mixed with `LibraryTrunk`, so weights need no
prefix, and what the library can do with the network (timm's grouping of layers) it still can.

flatten         what the network's classifier would get: the final feature
<a submodule>   what the submodule with that name gave, the last time it was called
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from sslengine.distributed.sharding import is_sharded
from sslengine.errors import ConfigError
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.recompute import Part, Rows, set_parts, watch

FINAL = "flatten"
# The side of images for a network that takes any.
SIDE = 224


class Feature(NamedTuple):
    """What it is made of: the outputs of submodules, each called once; "" is the network's own."""

    sources: tuple[str, ...]
    # Of the trunk, these outputs and the images.
    read: Callable[[Any, Sequence[Tensor], Tensor], Tensor] = lambda trunk, given, x: given[0]


def named(**submodules: str) -> dict[str, Feature]:
    """Outputs of submodules as features with names of their own."""
    return {name: Feature((submodule,)) for name, submodule in submodules.items()}


class LibraryTrunk(Trunk):
    # Where the options of the trunk stand.
    section: str
    # The features that have names of their own; any other submodule can be asked for too.
    table: dict[str, Feature]
    # What the submodules that were asked for gave, while the network runs.
    _given: dict[str, Tensor | None]
    _tapped: set[str]
    _can_stop = False
    # Of activation checkpointing.
    _rows: Rows | None = None
    _splits: int = 0
    _parts: Sequence[Part] = ()

    def begin(self, table: Mapping[str, Feature]) -> None:
        """The last of the features is the final one."""
        self.table, self.feature_names = dict(table), tuple(table)
        self._given, self._tapped = {}, set()
        self.check_features(self.feature_names[-1:])

    def check_features(self, names: Sequence[str], where: str = "out_feat_keys") -> None:
        """Any submodule will do: it is listened to from now on."""
        before = len(self._tapped)
        for name in names:
            for source in self._feature(name, where).sources:
                if source and source not in self._tapped:
                    self._tapped.add(source)
                    self._listen(source)
        if len(self._tapped) > before:
            self._cut()

    def _feature(self, name: str, where: str) -> Feature:
        if name in self.table:
            return self.table[name]
        modules = [each for each, _ in self.named_modules() if each]
        if name not in modules:
            raise self.unknown_feature(name, where, modules)
        return Feature((name,))

    def _listen(self, source: str) -> None:
        self.get_submodule(source).register_forward_hook(_Tap(self, source))

    def final_feature(self, x: Tensor) -> Tensor:
        """The network's output, as the library computes it."""
        return super(Trunk, self).forward(x)  # type: ignore[no-any-return]

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        features = {name: self.table.get(name) or Feature((name,)) for name in wanted}
        sources = dict.fromkeys(each for one in features.values() for each in one.sources)
        own = all(name in self.table for name in wanted)
        given = self._heard(x, sources, can_stop=own and "" not in sources and not is_sharded(self))
        return {
            name: feature.read(self, [given[each] for each in feature.sources], x)
            for name, feature in features.items()
        }

    def _heard(self, x: Tensor, sources: Collection[str], can_stop: bool) -> dict[str, Tensor]:
        """What the submodules give in a forward pass, which may end as soon as they have."""
        self._given = given = dict.fromkeys(sources)
        # Whoever records the pass, the compiler or a trace, does not survive an exception.
        traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        self._can_stop = can_stop and not (torch.compiler.is_compiling() or traced)
        try:
            given.update(self._run(x, sources))
        except _Enough:
            pass
        except AssertionError as error:  # so the libraries refuse images of another size
            raise ConfigError(
                f"{self.section}: {type(self).__name__} cannot take a batch of shape "
                f"{tuple(x.shape)}: {error} Resize or crop images in DATA, or set the size in "
                f"`arguments`."
            ) from error
        finally:
            self._given, self._can_stop = {}, False
        for name, tensor in given.items():
            if tensor is None:
                raise ConfigError(
                    f"{self.section}: the submodule {name!r} gives no tensor in a forward pass of "
                    f"{type(self).__name__}, so it is no feature."
                )
        return cast(dict[str, Tensor], given)

    def _run(self, x: Tensor, sources: Collection[str]) -> dict[str, Tensor]:
        """The final feature, if it is among the sources."""
        output = self.final_feature(x)
        return {"": output} if "" in sources else {}

    def stop_if_enough(self) -> None:
        """Leave the forward pass where everything that is wanted was heard."""
        if not self._can_stop or any(each is None for each in self._given.values()):
            return
        if not any(part.running for part in self._parts):  # torch's checkpointing is not left
            raise _Enough

    def checkpoint_activations(self, parts: int, blocks: str | None = None) -> None:
        """blocks: of those with such names; else of all."""
        blocks = blocks or self.block_names
        if blocks is None:
            return super().checkpoint_activations(parts)  # which raises
        images = _images_for(self)
        self._splits, self._rows = (
            parts,
            watch(self, blocks, lambda twin: twin.final_feature(images)),
        )
        if not self._rows.rows:
            super().checkpoint_activations(parts)
        self._cut()
        return None

    def _cut(self) -> None:
        if self._rows is not None:
            cut = self._rows.cut(self._splits, ends=self._tapped)
            self._parts = set_parts(self, cut, self.stop_if_enough)


class ByName(LibraryTrunk):
    """A network that the config calls by the library's name."""

    # Prefixes of the library's weights that are not here: those of its classifiers.
    left_out: tuple[str, ...] = ()

    def present_name(self, name: str) -> str:
        """What a tensor of the library's files is called here."""
        return name

    def library_weights(self, in_chans: int) -> dict[str, Tensor]:
        """The library's own, by the names that they have here; it may download them."""
        raise NotImplementedError


def _images_for(network: nn.Module) -> Tensor:
    """Two, on the meta device."""
    first = next(each for each in network.modules() if isinstance(each, nn.Conv2d))
    side = getattr(getattr(network, "patch_embed", None), "img_size", None)
    side = side or getattr(network, "image_size", None) or SIDE
    height, width = (side, side) if isinstance(side, int) else side
    return torch.empty(2, first.in_channels, height, width, dtype=first.weight.dtype, device="meta")


class _Enough(Exception):
    """What was wanted is there."""


class _Tap:
    """A forward hook; a copy of the trunk has copies of them."""

    def __init__(self, trunk: LibraryTrunk, name: str) -> None:
        self.trunk, self.name = trunk, name

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        given = self.trunk._given
        if self.name in given and isinstance(output, Tensor):
            given[self.name] = output
            self.trunk.stop_if_enough()
            given[self.name] = output.clone()  # what follows may work in place


L = TypeVar("L", bound=LibraryTrunk)


def adopt(network: nn.Module, kind: type[L], table: Mapping[str, Feature]) -> L:
    """The network as a trunk of that kind."""
    network.__class__ = _mixed(kind, cast(Any, type(network)), "features" in network._modules)
    trunk = cast(L, network)
    trunk.begin(table)
    return trunk


@cache
def _mixed(kind: type[Trunk], network: type[nn.Module], has_features: bool) -> type[nn.Module]:
    # A part of some networks has the name of a trunk's verb, and is found by it.
    part = property(lambda self: self._modules["features"])
    own = {"features": part, "find": LibraryTrunk.features} if has_features else {}
    return type(network.__name__, (kind, network), own)


def rows_of_blocks(network: nn.Module) -> str | None:
    """A pattern for the modules with parts of their own that stand in a row of modules."""
    return "|".join(map(re.escape, _blocks_in(network, "", in_a_row=False))) or None


def _blocks_in(module: nn.Module, name: str, in_a_row: bool) -> Iterator[str]:
    row = isinstance(module, (nn.Sequential, nn.ModuleList))
    if in_a_row and not row and next(module.children(), None) is not None:
        yield name
        return
    for key, child in module.named_children():
        yield from _blocks_in(child, f"{name}.{key}".lstrip("."), row)
