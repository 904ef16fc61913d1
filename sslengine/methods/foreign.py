"""Losses that were not written as methods are taken as they are.

    a module whose forward takes (output, target)          torch.nn's, Classy's, VISSL's
    a class with `from_config`                             made of its options, as VISSL makes it
    a function (output, target) or (output, sample, step)  keyword arguments from its options

Which it is, is decided once, from the signature, when the loss is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from sslengine.config.arguments import loss_arguments


class FunctionLoss(nn.Module):
    """Any function (output, target) -> loss, or (output, sample, step) -> loss."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        # The module of a bound method: its parameters and buffers are those of the loss.
        owner = getattr(function, "__self__", None)
        self.owner = owner if isinstance(owner, nn.Module) else None

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def build(chosen: Any, options: Mapping[str, Any], name: str, given: Mapping[str, Any]) -> Any:
    """The loss that `chosen` is, or makes. given: arguments that the engine gives."""
    if hasattr(chosen, "from_config"):
        return chosen.from_config(AttrDict({"name": name, **options}))
    if loss_arguments(chosen, {*options, *given}):
        return FunctionLoss(partial(chosen, **options, **given))
    return chosen(**options, **given)


def takes_sample(loss: Any) -> bool:
    """(output, sample, step) or (output, target)? The third argument, without a default, tells."""
    function = loss.function if isinstance(loss, FunctionLoss) else loss
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False  # a C function without a signature
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in positional]
    return len(needed) >= 3 and (needed[2].name == "step" or needed[2].default is needed[2].empty)


class AttrDict(dict[str, Any]):
    """A dict whose values are attributes as well, as VISSL's losses read their config."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(
            (key, AttrDict(value) if isinstance(value, Mapping) else value)
            for key, value in values.items()
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error
