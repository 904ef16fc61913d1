"""What a method is to the engine.

A method is a module, registered by name with a dataclass of its YAML options:

    @register_loss("my_loss", options=MyOptions)
    class MyLoss(Method):
        def __init__(self, options: MyOptions, run: RunFacts):
            super().__init__()
            self.predictor = nn.Linear(128, 128)      # trained, as the model is
            self.teacher = Teacher(momentum=0.99)     # a slow copy of the model: teacher.py

        def forward(self, output, sample, step):      # a scalar, or a dict with the key "loss"
            targets = self.teacher(sample["input"], step)
            ...

`output` is what the model gives (a tensor, or a list when there are several), in full precision;
`sample` the batch (`input`, `target`, `data_idx`, masks and whatever else the collator made);
`step` tells where the run is and takes metrics (step.py). What a method keeps between steps
(queue, centre) it keeps in buffers and submodules: those are checkpointed and restored.
State moves in `forward` if `step.train`, in `before_phase`, `after_backward` and `after_update`;
evaluation moves nothing.

Submodules made in `__init__` may have `attach` and these three of their own: they are called too,
behind the method's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import nn

from sslengine.hooks.events import Hook
from sslengine.methods.step import Step
from sslengine.optim.multipliers import Multiplier

__all__ = ["Method", "Multiplier", "Step", "verbs"]


class Method(nn.Module):
    """Base of the losses that ship with sslengine. Any nn.Module will do as a loss."""

    # Which network is judged and exported by default: student (the model) or teacher.
    judged_network: ClassVar[str] = "student"

    def attach(self, model: nn.Module) -> None:
        """The model is built: copy of it what is needed.

        Called on every rank, before a checkpoint is loaded; once more when initial weights
        have been loaded into the model, so that copies start as the model does.
        """

    def before_phase(self, step: Step) -> None:
        """A train phase begins: an epoch, or its share. Not where a run is resumed within one."""

    def after_backward(self, step: Step) -> None:
        """The gradients of this batch are there. In train phases, for each batch of a group."""

    def after_update(self, step: Step) -> None:
        """The optimizer has stepped."""

    def multipliers(self) -> Mapping[str, Multiplier]:
        """By patterns on the names of its own parameters; of several that match, the last."""
        return {}

    def hooks(self) -> list[Hook]:
        """Hooks of its own, for methods that are written in VISSL's style, and for observers."""
        return []

    def rank_state(self) -> dict[str, Any]:
        """State of this rank alone, beside the module's own state dict."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The opposite of rank_state."""


def verbs(method: nn.Module, name: str) -> tuple[Callable[[Any], None], ...]:
    """The verb of that name of a method and its parts, where it does something."""
    return tuple(
        getattr(part, name)
        for part in method.modules()
        if getattr(type(part), name, None) not in (None, getattr(Method, name))
    )
