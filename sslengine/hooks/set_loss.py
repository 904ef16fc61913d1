"""The loss over a whole dataset split, in eval mode and with fixed weights."""

from __future__ import annotations

from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, TaskView
from sslengine.hooks.options import EvaluateLossOptions


class EvaluateLoss(Hook):
    """`HOOKS.EVALUATE_LOSS`: adds to `task.phase_results`.

    Cost: a forward pass over the split each time. It changes nothing in the run.
    """

    def __init__(self, options: EvaluateLossOptions) -> None:
        self.sets = [name.upper() for name in options.SETS]
        self.every, self.at_end = options.EVERY, options.AT_END

    def on_start(self, task: TaskView) -> None:
        if "TRAIN" in self.sets and task.train_feed is None:
            raise ConfigError("config.HOOKS.EVALUATE_LOSS.SETS: this run only tests; name TEST.")

    def on_phase_end(self, task: TaskView) -> None:
        if not task.train or not task.phase.complete:
            return
        made = task.phase.train_index + 1
        last = made == 1 + max(phase.train_index for phase in task.phases)
        if (self.every > 0 and made % self.every == 0) or (last and self.at_end):
            task.phase_results["set_loss"] = {
                name.lower(): task.set_loss(name)["loss"] for name in self.sets
            }
