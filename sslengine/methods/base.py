"""What a method is to the engine.

A method is a loss module, registered by name with a dataclass of its YAML options:

    @register_loss("my_loss", options=MyOptions)
    class MyLoss(Method):
        def __init__(self, options: MyOptions, run: RunFacts): ...
        def forward(self, output, target): ...      # a scalar, or a dict with the key "loss"
        def hooks(self): return [MyHook(self)]      # if it has work outside the loss

`output` is what the model gives (a tensor, or a list when there are several), `target`
the batch's labels. What it keeps between steps (queue, centre, teacher) it keeps in
buffers and submodules: those are checkpointed and restored. What differs between ranks
goes through `rank_state` and `load_rank_state`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from sslengine.hooks.events import Hook


class Method(nn.Module):
    """Base of the losses that ship with sslengine. Any nn.Module will do as a loss."""

    @abstractmethod
    def forward(self, output: Any, target: Any) -> Tensor | dict[str, Tensor]:
        raise NotImplementedError

    def hooks(self) -> list[Hook]:
        """The hooks that this method needs; the engine runs them before its own."""
        return []

    def rank_state(self) -> dict[str, Any]:
        """State of this rank alone, beside the module's own state dict."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The opposite of rank_state."""
