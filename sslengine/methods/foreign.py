"""Losses that are not methods can be used unchanged.

    a module whose forward takes (output, target)          torch.nn's, Classy's, VISSL's
    a class with `from_config`                             built from its options, as in VISSL
    a function (output, target) or (output, sample, step)  keyword arguments from its options

The signature decides which it is, once, when the loss is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from sslengine.config.components import loss_arguments


class FunctionLoss(nn.Module):
    """Any function (output, target) -> loss, or (output, sample, step) -> loss."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        # For a bound method of a module: the module's parameters and buffers belong to the loss.
        owner = getattr(function, "__self__", None)
        self.owner = owner if isinstance(owner, nn.Module) else None

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def build(chosen: Any, options: Mapping[str, Any], name: str, given: Mapping[str, Any]) -> Any:
    """Build the loss from a class or function. given: arguments that the engine passes."""
    if hasattr(chosen, "from_config"):
        return chosen.from_config(AttrDict({"name": name, **options}))
    if loss_arguments(chosen, {*options, *given}):
        return FunctionLoss(partial(chosen, **options, **given))
    return chosen(**options, **given)


def takes_sample(loss: Any) -> bool:
    """True for (output, sample, step): its third argument is `step` or has no default."""
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
    """A dict whose values are also attributes: VISSL's losses read their config so."""

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
