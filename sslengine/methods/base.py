"""What a method is to the engine.

A method is a loss module, registered by name with a dataclass of its YAML options:

    @register_loss("my_loss", options=MyOptions)
    class MyLoss(Method):
        def __init__(self, options: MyOptions, run: RunFacts): ...
        def forward(self, output, target): ...      # a scalar, or a dict with the key "loss"
        def hooks(self): return [MyHook(self)]      # if it has work outside the loss

A method that keeps a copy of the model (a teacher, a momentum encoder) makes it in
`attach(model)` and keeps it as a submodule; what it must do outside the loss (a forward
of the teacher, an update of it) is a hook's business. Evaluation moves neither teacher
nor queue: hooks look at `task.train`.

`output` is what the model gives (a tensor, or a list when there are several), `target`
the batch's labels. What it keeps between steps (queue, centre, teacher) it keeps in
buffers and submodules: those are checkpointed and restored. What differs between ranks
goes through `rank_state` and `load_rank_state`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from sslengine.hooks.events import Hook


class Method(nn.Module):
    """Base of the losses that ship with sslengine. Any nn.Module will do as a loss."""

    # The name of the submodule that is a slow copy of the model, if the method keeps one ...
    teacher_part: ClassVar[str] = ""
    # ... and which network is judged and exported by default: student (the model) or teacher.
    judged_network: ClassVar[str] = "student"

    @abstractmethod
    def forward(self, output: Any, target: Any) -> Tensor | dict[str, Tensor]:
        raise NotImplementedError

    def attach(self, model: nn.Module) -> None:
        """The model is built: copy of it what is needed.

        Called on every rank, before a checkpoint is loaded; once more when initial weights
        have been loaded into the model, so that copies start as the model does.
        """

    def hooks(self) -> list[Hook]:
        """The hooks that this method needs; the engine runs them before its own."""
        return []

    def rank_state(self) -> dict[str, Any]:
        """State of this rank alone, beside the module's own state dict."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The opposite of rank_state."""
