"""Any network of a library as a trunk, with the library's names for its parameters and parts.

The network itself becomes the trunk: its class is mixed with `LibraryTrunk`, so weights need no
prefix, and what the library can do with the network (timm's grouping of layers) it still can.

flatten         what the network's classifier would get: the final feature
<a submodule>   what the submodule with that name gave, the last time it was called
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError, nearest
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.steps import recomputed

FINAL = "flatten"


class LibraryTrunk(Trunk):
    # Where the options of the trunk stand.
    section: str
    # Prefixes of the library's weights that are not here: those of its classifiers.
    left_out: tuple[str, ...] = ()
    # What the submodules that were asked for gave, while the network runs.
    _given: dict[str, Tensor | None]
    _tapped: set[str]

    def begin(self, names: Sequence[str], block_names: str | None) -> None:
        """names: of features beside the final one."""
        self.feature_names = (*(name for name in dict.fromkeys(names) if name != FINAL), FINAL)
        self.block_names = block_names
        self._given, self._tapped = {}, set()

    def check_features(self, names: Sequence[str], where: str = "out_feat_keys") -> None:
        """Any submodule will do: it is listened to from now on."""
        for name in names:
            if name in self._tapped or name in self._without_tap():
                continue
            modules = dict(self.named_modules())
            if not name or name not in modules:
                known = nearest(name, (*self.feature_names, *modules))
                super().check_features([name], f"{where}: {known}".rstrip(": "))
            self._tapped.add(name)
            modules[name].register_forward_hook(_Tap(self, name))

    def library_weights(self, in_chans: int) -> dict[str, Tensor]:
        """The library's own, by the names that they have here; it may download them."""
        raise NotImplementedError

    def _without_tap(self) -> Collection[str]:
        """The features that the network gives without being listened to."""
        return (FINAL,)

    def final_feature(self, x: Tensor) -> Tensor:
        """The final feature, as the library computes it."""
        return super(Trunk, self).forward(x)  # type: ignore[no-any-return]

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return self.find(x, wanted)

    def find(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        self._given = given = dict.fromkeys(name for name in wanted if name in self._tapped)
        try:
            found = self._run(x, wanted)
        except AssertionError as error:  # so the libraries refuse images of another size
            raise ConfigError(
                f"{self.section}: {type(self).__name__} cannot take a batch of shape "
                f"{tuple(x.shape)}: {error} Resize or crop images in DATA, or set the size in "
                f"`arguments`."
            ) from error
        finally:
            self._given = {}
        for name, tensor in given.items():
            if tensor is None:
                raise ConfigError(
                    f"{self.section}: the submodule {name!r} gives no tensor in a forward pass of "
                    f"{type(self).__name__}, so it is no feature."
                )
            found[name] = tensor
        return found

    def _run(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {FINAL: self.final_feature(x)}

    def checkpoint_activations(self, parts: int) -> None:
        """Block by block, however many parts were asked for."""
        names = re.compile(self.block_names or "(?!)")
        blocks = [
            each
            for name, each in self.named_modules()
            if names.fullmatch(name) and next(each.children(), None) is not None
        ]
        if not blocks:
            super().checkpoint_activations(parts)  # which raises
        for block in blocks:
            block.__class__ = _recomputing(cast(Any, type(block)))


L = TypeVar("L", bound=LibraryTrunk)


class _Tap:
    """A forward hook; a copy of the trunk has copies of them."""

    def __init__(self, trunk: LibraryTrunk, name: str) -> None:
        self.trunk, self.name = trunk, name

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.name in self.trunk._given and isinstance(output, Tensor):
            self.trunk._given[self.name] = output.clone()  # what follows may work in place


def adopt(network: nn.Module, kind: type[L], names: Sequence[str], block_names: str | None) -> L:
    """The network as a trunk of that kind."""
    network.__class__ = _mixed(kind, cast(Any, type(network)), "features" in network._modules)
    trunk = cast(L, network)
    trunk.begin(names, block_names)
    return trunk


@cache
def _mixed(kind: type[Trunk], network: type[nn.Module], has_features: bool) -> type[nn.Module]:
    # A part of some networks has the name of a trunk's verb, and is found by it.
    part = {"features": property(lambda self: self._modules["features"])}
    return type(network.__name__, (kind, network), part if has_features else {})


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """Blocks that keep nothing of what is inside them."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *inputs, **named)
        return recomputed(self, partial(kind.forward, self), *inputs, **named)

    return type(kind.__name__, (kind,), {"forward": forward})


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
