"""The base class of methods.

A method is a module, registered by name with a dataclass of its YAML options:

    @register_loss("my_loss", options=MyOptions)
    class MyLoss(Method):
        def __init__(self, options: MyOptions, run: RunFacts):
            super().__init__()
            self.predictor = nn.Linear(128, 128)      # trained, like the model
            self.teacher = Teacher(momentum=0.99)     # momentum copy of the model: teacher.py

        def forward(self, output, sample, step):      # a scalar, or a dict with the key "loss"
            targets = self.teacher(sample["input"], step)
            ...

`output` is the model's output (a tensor, or a list if there are several), in full precision;
`sample` is the batch (`input`, `target`, `data_idx`, masks and other fields of the collator);
`step` has the position in the run and takes metrics (step.py). State between steps (queue,
centre) is in buffers and submodules: these are checkpointed and restored. State changes in
`forward` if `step.train`, in `before_phase`, `after_backward` and `after_update`; evaluation
changes nothing.

`attach` and these three callbacks are also called on submodules made in `__init__`, after the
method's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import nn

from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import Hook
from sslengine.methods.step import Step
from sslengine.optim.param_groups import Multiplier

__all__ = ["Method", "Multiplier", "Step", "callbacks", "expect_known_callbacks"]

IN_STEPS = ("before_phase", "after_backward", "after_update")


class Method(nn.Module):
    """Base of the losses that ship with sslengine. Any other nn.Module can be a loss too."""

    # Which network is evaluated and exported by default: student (the model) or teacher.
    judged_network: ClassVar[str] = "student"

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Keep the arguments, for the config of a run of objects."""
        made, bound = super().__new__(cls), inspect.signature(cls).bind_partial(*given, **named)
        plain = {key: each for key, each in bound.arguments.items() if key != "trunk"}
        made.__dict__["made_with"] = plain
        return made

    def attach(self, model: nn.Module) -> None:
        """The model is built: copy what the method needs of it.

        Called on every rank before a checkpoint is loaded, and again after initial weights
        are loaded into the model, so that copies start with them.
        """

    def start_sharded(self, model: nn.Module) -> None:
        """Replace the second `attach` of a sharded model, which cannot be copied: write its
        weights over copies that are no whole models. Those that are have them already."""

    def before_phase(self, step: Step) -> None:
        """A train phase begins (an epoch or a part of one). Not called on resume within one."""

    def after_backward(self, step: Step) -> None:
        """Gradients of this batch are computed. In train phases, also while accumulating."""

    def after_update(self, step: Step) -> None:
        """The optimizer has stepped."""

    def multipliers(self) -> Mapping[str, Multiplier]:
        """Pattern of own parameter names -> multiplier; the last pattern that matches counts."""
        return {}

    def hooks(self) -> list[Hook]:
        """Hooks that the method adds: for methods in VISSL's style, and for observers."""
        return []

    def rank_state(self) -> dict[str, Any]:
        """State of this rank that is not in the module's state dict."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Restore the state that rank_state returned."""


def expect_known_callbacks(method: nn.Module) -> None:
    """Raise ConfigError for a `before_...`, `after_...` or `on_...` that would never be called.

    Names `on_...` of another base class are its own; of Hook only if the method has hooks.
    """
    has_hooks = getattr(type(method), "hooks", Method.hooks) is not Method.hooks
    uncalled = Method if has_hooks else (Method, Hook)
    for kind in {type(part) for part in method.modules() if isinstance(part, Method)}:
        others = [each for each in kind.__mro__ if not issubclass(each, uncalled)]
        for name in dir(kind):
            if hasattr(Method, name) or not name.startswith(("before_", "after_", "on_")):
                continue
            theirs = name.startswith("on_") and any(hasattr(each, name) for each in others)
            if not theirs and getattr(kind, name) is not getattr(Hook, name, None):
                raise ConfigError(
                    f"{kind.__name__}.{name}: there is no such callback, so it would never be "
                    f"called. {nearest(name, IN_STEPS)} There are {', '.join(IN_STEPS)}; `on_...` "
                    f"are events of hooks, which `hooks()` returns. If it is none, let its name "
                    f"begin with something else."
                )


def callbacks(method: nn.Module, name: str) -> tuple[Callable[[Any], None], ...]:
    """The callbacks of this name of a method and its submodules, where overridden."""
    return tuple(
        getattr(part, name)
        for part in method.modules()
        if getattr(type(part), name, None) not in (None, getattr(Method, name))
    )
