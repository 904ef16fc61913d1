"""Any network of a library as a trunk, with the library's names of parameters and submodules.

The network itself becomes the trunk: its class is combined with `LibraryTrunk`. So parameter names
have no prefix, and functions of the library (timm's grouping of layers) still accept the network.

flatten         the input of the network's classifier: the final feature
<a submodule>   the output of the submodule's last call
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sslengine.distributed.sharding import is_sharded
from sslengine.errors import ConfigError, TrainingError
from sslengine.models.trunks.base import OUTPUT, Trunk

FINAL = "flatten"


class Feature(NamedTuple):
    """A feature is a function of the outputs of submodules, each of which is called once."""

    # Names of submodules; "" is the network.
    sources: tuple[str, ...]
    # A function of the trunk, the outputs of `sources` and the images.
    read: Callable[[Any, Sequence[Tensor], Tensor], Tensor] = lambda trunk, given, x: given[0]


@dataclass(frozen=True)
class Design:
    """A library's network by name: what another program makes to hold a trunk's tensors."""

    name: str
    # Without those that count in training alone; as JSON has them.
    arguments: dict[str, Any] = field(default_factory=dict)
    # Our names of tensors, and the library's (see re.sub).
    renamed: tuple[tuple[str, str], ...] = ()
    # torchvision's classifier, in whose place nothing is.
    last: str = "fc"


def named(**submodules: str) -> dict[str, Feature]:
    """Return features that are the outputs of submodules: feature name = submodule name."""
    return {name: Feature((submodule,)) for name, submodule in submodules.items()}


class LibraryTrunk(Trunk):
    # The same network in timm and torchvision; a text: the option that these do not have.
    designs: Mapping[str, Design | str] = MappingProxyType({})
    # The key path of the trunk's options.
    section: str
    # The features listed by the trunk; those of submodules can be requested too.
    table: dict[str, Feature]
    # The recorded outputs of the current forward pass, by submodule.
    _outputs: dict[str, Tensor | None]
    # The submodules that record their outputs.
    _recorded: set[str]
    _can_stop = False
    # The extra inputs of the current forward pass.
    extra: Mapping[str, Tensor] = MappingProxyType({})
    # Activation checkpointing, inside of which a forward pass cannot be ended.
    _recomputes = False

    def set_features(self, table: Mapping[str, Feature]) -> None:
        """Set the trunk's features; the last is the final feature."""
        self.table, self.feature_names = dict(table), tuple(table)
        self._outputs, self._recorded = {}, set()
        # Is the final feature what the library's own forward returns?
        self._ends_with_final = self.table[self.feature_names[-1]] == Feature(("",))
        self.check_features(self.feature_names[-1:])

    def check_features(self, names: Sequence[str], where: str = "out_feat_keys") -> None:
        """Record the outputs of the features' submodules from now on."""
        for name in names:
            for source in self._feature(name, where).sources:
                if source and source not in self._recorded:
                    self._recorded.add(source)
                    self._record(source)

    def _feature(self, name: str, where: str) -> Feature:
        if name in self.table:
            return self.table[name]
        modules = [each for each, _ in self.named_modules() if each]
        if name not in modules:
            raise self.unknown_feature(name, where, modules)
        return Feature((name,))

    def _record(self, source: str) -> None:
        submodule = self.get_submodule(source.removeprefix(OUTPUT))
        submodule.register_forward_hook(_RecordOutput(self, source))

    def forward(
        self, x: Tensor, out_feat_keys: Sequence[str] = (), **extra: Tensor
    ) -> list[Tensor]:
        """Return the requested features; the final one alone is the network's own output."""
        is_final = not out_feat_keys or tuple(out_feat_keys) == self.feature_names[-1:]
        fits = self.in_chans in (None, x.shape[1])
        if extra or not (is_final and fits and self._ends_with_final):
            return super().forward(x, out_feat_keys, **extra)
        try:
            return [self.final_feature(x)]
        except AssertionError as error:
            raise self._wrong_size(x, error) from error

    def final_feature(self, x: Tensor) -> Tensor:
        """Return the network's output, computed by the library."""
        return super(Trunk, self).forward(x)  # type: ignore[no-any-return]

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        features = {name: self.table.get(name) or Feature((name,)) for name in wanted}
        sources = dict.fromkeys(each for one in features.values() for each in one.sources)
        own = all(name in self.table for name in wanted)
        can_stop = own and "" not in sources and not (self._recomputes or is_sharded(self))
        self.extra = extra
        try:
            given = self._recorded_outputs(x, sources, can_stop)
            return {
                name: feature.read(self, [given[each] for each in feature.sources], x)
                for name, feature in features.items()
            }
        finally:
            self.extra = {}

    def _recorded_outputs(
        self, x: Tensor, sources: Collection[str], can_stop: bool
    ) -> dict[str, Tensor]:
        """Run the network and return the outputs of submodules.

        can_stop: the forward pass may end after the last of them.
        """
        self._outputs = given = dict.fromkeys(sources)
        # The pass is ended by an exception, which torch.compile and torch.jit.trace cannot handle.
        traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        self._can_stop = can_stop and not (torch.compiler.is_compiling() or traced)
        try:
            given.update(self._run(x, sources))
        except _AllRecorded:
            pass
        except AssertionError as error:
            raise self._wrong_size(x, error) from error
        finally:
            self._outputs, self._can_stop = {}, False
        for name, tensor in given.items():
            if tensor is None:
                raise ConfigError(
                    f"{self.section}: the submodule {name!r} returns no tensor in a forward pass "
                    f"of {type(self).__name__}, so it cannot be a feature."
                )
        return cast(dict[str, Tensor], given)

    def _wrong_size(self, x: Tensor, error: AssertionError) -> ConfigError:
        """Return the error for what the libraries raise for images of another size."""
        return ConfigError(
            f"{self.section}: {type(self).__name__} cannot take a batch of shape "
            f"{tuple(x.shape)}: {error} Resize or crop images in DATA, or set the size in "
            f"`arguments`."
        )

    def _run(self, x: Tensor, sources: Collection[str]) -> dict[str, Tensor]:
        """Run the network; return the outputs that are not recorded, here the network's ("")."""
        output = self.final_feature(x)
        return {"": output} if "" in sources else {}

    def stop_if_all_recorded(self) -> None:
        """End the forward pass if all requested outputs are recorded."""
        if self._can_stop and all(each is not None for each in self._outputs.values()):
            raise _AllRecorded

    def checkpoint_activations(self, blocks: str | None = None) -> None:
        """blocks: recompute only the blocks that this regular expression matches."""
        names = blocks or self.block_names
        self._recomputes = names is not None and recompute_blocks(self, names)
        if not self._recomputes:
            super().checkpoint_activations()


class ByName(LibraryTrunk):
    """A network that the config names by the library's name."""

    # Prefixes of the library's weights that the trunk lacks: those of classifiers.
    left_out: tuple[str, ...] = ()

    def present_name(self, name: str) -> str:
        """Return the trunk's name of a tensor in the library's files."""
        return name

    def library_weights(self, in_chans: int) -> dict[str, Tensor]:
        """Return the library's pretrained weights by the trunk's names; it may download them."""
        raise NotImplementedError


class _AllRecorded(Exception):
    """All requested outputs are recorded: the forward pass can end."""


class _RecordOutput:
    """A forward hook. It is an object so that a deep copy of the trunk copies it too."""

    def __init__(self, trunk: LibraryTrunk, name: str) -> None:
        self.trunk, self.name = trunk, name

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        outputs = self.trunk._outputs
        if self.name in outputs and isinstance(output, Tensor):
            outputs[self.name] = output
            self.trunk.stop_if_all_recorded()
            outputs[self.name] = output.clone()  # the next module may change the output in place


L = TypeVar("L", bound=LibraryTrunk)


def adopt(network: nn.Module, kind: type[L], table: Mapping[str, Feature]) -> L:
    """Turn the network into a trunk of class `kind`, with the features of `table`."""
    network.__class__ = _mixed(kind, cast(Any, type(network)), "features" in network._modules)
    trunk = cast(L, network)
    trunk.set_features(table)
    return trunk


@cache
def _mixed(kind: type[Trunk], network: type[nn.Module], has_features: bool) -> type[nn.Module]:
    # Some networks have a submodule named `features`, which hides the method of Trunk.
    part = property(lambda self: self._modules["features"])
    own = {"features": part, "find": LibraryTrunk.features} if has_features else {}
    return type(network.__name__, (kind, network), own)


def rows_of_blocks(network: nn.Module) -> str | None:
    """Return a pattern for modules in a Sequential or ModuleList that have submodules."""
    return "|".join(map(re.escape, _blocks_in(network, "", in_a_row=False))) or None


def _blocks_in(module: nn.Module, name: str, in_a_row: bool) -> Iterator[str]:
    row = isinstance(module, (nn.Sequential, nn.ModuleList))
    if in_a_row and not row and next(module.children(), None) is not None:
        yield name
        return
    for key, child in module.named_children():
        yield from _blocks_in(child, f"{name}.{key}".lstrip("."), row)


# ---- images of other than three channels

# The initialisation of convolutions in torchvision and Classy Vision.
by_fan_out: Callable[[Tensor], Tensor] = partial(
    nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"
)


def take_channels(
    layer: nn.Module, in_chans: int, draw: Callable[[Tensor], Tensor] | None = None
) -> nn.Conv2d:
    """Return the layer if it takes `in_chans` channels, else a similar one that does.

    draw: initialise the weights in place; by default as torch's convolutions.
    """
    assert isinstance(layer, nn.Conv2d)
    if layer.in_channels == in_chans:
        return layer
    geometry: dict[str, Any] = {
        name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")
    }
    bias = layer.bias is not None
    made = nn.Conv2d(in_chans, layer.out_channels, bias=bias, **geometry)
    if draw is not None:
        draw(made.weight)
    return made


# ---- activation checkpointing: a block keeps its input alone, and is computed again in backward.
# The second pass must not update the running statistics of batch norms a second time.


def recompute_blocks(network: nn.Module, names: str) -> bool:
    """Recompute the outermost modules whose names match from now on; tell whether there are any.

    A single layer keeps little but its input: it is left as it is.
    """
    found: list[str] = []
    for name, module in network.named_modules():
        inside = name.startswith(tuple(f"{each}." for each in found))
        if re.fullmatch(names, name) and not inside and next(module.children(), None) is not None:
            found.append(name)
            module.__class__ = _recomputing(cast(Any, type(module)))
    return bool(found)


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        run = partial(cast(Any, kind).forward, self)
        if not torch.is_grad_enabled():
            return run(*inputs, **named)
        # DenseNet's blocks append to the list that they get.
        inputs = tuple(list(each) if isinstance(each, list) else each for each in inputs)
        compiled = torch.compiler.is_compiling()
        tensors = [each for each in inputs if isinstance(each, Tensor) and not compiled]
        before = [each._version for each in tensors]
        output = recomputed([self], run, *inputs, **named)
        if [each._version for each in tensors] != before:
            raise TrainingError(
                f"config.MODEL.ACTIVATION_CHECKPOINTING: a {kind.__name__} changes its input in "
                f"place, so it cannot be computed again. Set USE_ACTIVATION_CHECKPOINTING to false."
            )
        return output

    return type(kind.__name__, (kind,), {"forward": forward})


def recomputed(
    owners: Iterable[nn.Module], inside: Callable[..., Any], *inputs: Any, **named: Any
) -> Any:
    """Call `inside` under activation checkpointing.

    In a compiled function batch norms update their statistics once without `context_fn`.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), StatisticsUntouched(owners)

    own: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
    return checkpoint(inside, *inputs, use_reentrant=False, **own, **named)


class StatisticsUntouched(AbstractContextManager[None]):
    """Keep running statistics unchanged: momentum is 0, and batches are counted on a copy.

    Tracking stays on, because the second forward pass must save the same tensors as the first. It
    may be entered again: each backward pass of a kept graph computes a block again.
    """

    def __init__(self, owners: Iterable[nn.Module]) -> None:
        self._norms = [
            module
            for owner in owners
            for module in owner.modules()
            if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
        ]

    def __enter__(self) -> None:
        self._kept = [(each.momentum, each.num_batches_tracked) for each in self._norms]
        for module, (_, count) in zip(self._norms, self._kept, strict=True):
            assert count is not None
            module.momentum, module.num_batches_tracked = 0.0, count.clone()

    def __exit__(self, *_: object) -> None:
        for module, (momentum, count) in zip(self._norms, self._kept, strict=True):
            module.momentum, module.num_batches_tracked = momentum, count
