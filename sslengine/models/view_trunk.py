"""The trunk that a method gets: views of images in, features by view out.

    trunk(views)                      views x images x width: the final feature of each view
    trunk(views, maps=["res4"])       {"res4": [the map of each view]}
    trunk(images, ["lastPATCH"], mask=mask)    {"lastPATCH": patches}: one batch of images
    trunk.width                       of the final feature

`views` is a list of batches of images; neighbours of one size pass in one batch. Further inputs
(`mask`, `shown`, `patches_at`) go with one batch; a method asks for them with `trunk.take("mask")`.
A trunk that `sslengine.trunk` makes owns its network, and lends it to the model that is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.models.build import known_heads
from sslengine.models.model import Model
from sslengine.models.options import HeadOptions, ModelOptions
from sslengine.models.trunks.tokens import take_input
from sslengine.precision import Precision


class ViewTrunk(Model):
    """A model's trunk, borrowed: the model trains, saves and freezes it. A copy has its own."""

    # Of one that was made alone: its name, the side of images, the keys of the config that make it.
    name = ""
    size: int | None = None
    keys: Mapping[str, Any] = {}

    def __init__(self, model: Model, width: int) -> None:
        super().__init__(
            model.trunk, nn.ModuleList(), model.routes, flip_channels=model.flip_channels,
            single_pass_every_crop=model.single_pass_every_crop,
        )  # fmt: skip
        self.width = width
        self.__dict__["trunk"] = self._modules.pop("trunk")  # no submodule

    def __deepcopy__(self, memo: dict[int, Any]) -> ViewTrunk:
        copied = ViewTrunk(self, self.width)
        copied.trunk = copy.deepcopy(self.trunk, memo)
        copied.name, copied.size, copied.keys = self.name, self.size, self.keys
        return copied

    @contextmanager
    def lent(self) -> Iterator[Model]:
        """Lend the network to a model without heads while the block runs."""
        model = Model(
            self.trunk, nn.ModuleList(), self.routes, flip_channels=self.flip_channels,
            single_pass_every_crop=self.single_pass_every_crop,
        )  # fmt: skip
        self.__dict__["trunk"] = self._modules.pop("trunk")
        try:
            yield model
        finally:
            self.trunk = model.trunk

    def take(self, name: str) -> None:
        """Let the trunk take a further input; raise ConfigError if it cannot."""
        take_input(self.trunk, name)

    def forward(  # type: ignore[override]
        self, views: Tensor | Sequence[Tensor], maps: Sequence[str] = (), **inputs: Tensor
    ) -> Any:
        if isinstance(views, Tensor):
            found = self.trunk(self._channels(views), maps, **inputs)
            return dict(zip(maps, found, strict=True)) if maps else found[0].flatten(1)
        images = len(views[0])
        groups = [self.trunk(group, maps) for group in self._groups(views)]
        if not maps:
            return torch.cat([one.flatten(1) for (one,) in groups]).unflatten(0, (-1, images))
        return {
            name: [view for group in groups for view in group[place].split(images)]
            for place, name in enumerate(maps)
        }


def lend(model: Model, options: ModelOptions) -> ViewTrunk:
    """Return the trunk of a model without heads, for a method."""
    head = HeadOptions(PARAMS=[["mlp", {"dims": ["auto", 1]}]])
    (_, arguments), *_ = known_heads(replace(options, HEAD=head))
    return ViewTrunk(model, arguments["dims"][0])


def parameters_with_trunk(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield a module's parameters, those of borrowed trunks too, in the order of its copy's."""
    seen = set[int]()
    for each in module.modules():
        borrowed = each.__dict__.get("trunk") if isinstance(each, ViewTrunk) else None
        own = each.parameters(recurse=False) if borrowed is None else borrowed.parameters()
        for parameter in own:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def compute_networks_in(precision: Precision, method: nn.Module) -> None:
    """Let the networks of a method compute in the run's precision, and return float32."""
    for handle in vars(method).pop("_in_precision", ()):  # of an earlier run of the same object
        handle.remove()
    handles: list[Any] = []
    vars(method)["_in_precision"] = handles
    for network in networks_of(method) if precision.mixed else ():
        entered: list[AbstractContextManager[Any]] = []

        def enter(module: Any, inputs: Any, entered: Any = entered) -> None:
            entered.append(precision.autocast())
            entered[-1].__enter__()

        def leave(module: Any, inputs: Any, output: Any, entered: Any = entered) -> Any:
            entered.pop().__exit__(None, None, None)
            return precision.as_full(output)

        handles.append(network.register_forward_pre_hook(enter))
        handles.append(network.register_forward_hook(leave, always_call=True))


def networks_of(method: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a method that have parameters or a trunk; of a list of parts each."""
    for part in method.children():
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            yield from networks_of(part)
        elif next(parameters_with_trunk(part), None) is not None:
            yield part
