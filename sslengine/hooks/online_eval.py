"""`HOOKS.ONLINE_EVAL`: how good the features are, while the run trains.

After every EVERY-th train phase, and the last, the features of IMAGES training images are computed
as for an evaluation (resized, not augmented), and the metrics of WHAT added to the phase's results:

    online.knn_20      accuracy of the 20 nearest neighbours among the other images, in percent
    online.linear      of a linear probe, fitted on one half of the images and scored on the other
    online.rankme ...  metrics that need no labels

The run does not change by a bit. `CHECKPOINT.BEST.METRIC: train.online.knn_20` keeps the best one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.errors import ConfigError, DataError
from sslengine.evaluation.knn import knn_within
from sslengine.evaluation.label_free.inputs import Inputs, measure
from sslengine.evaluation.linear import linear_probe
from sslengine.hooks.events import Hook, TaskView
from sslengine.hooks.options import OnlineEvalOptions
from sslengine.registry import LABEL_FREE, register_hook

WHERE = "config.HOOKS.ONLINE_EVAL"


@register_hook("online_eval", options=OnlineEvalOptions)
class OnlineEval(Hook):
    """Cost: one forward of the network for each of IMAGES images each time."""

    def __init__(self, options: OnlineEvalOptions) -> None:
        self.options = options

    def on_start(self, task: TaskView) -> None:
        if task.train_feed is None:
            raise ConfigError(f"{WHERE}.EVERY: this run only tests; set it to 0.")
        if task.peers is not None:
            raise ConfigError(
                f"{WHERE}.EVERY: the trunk of a sharded model cannot be run alone; set it to 0, and "
                f"evaluate the checkpoints."
            )
        train = read(task.config, DataOptions).TRAIN
        labelled = bool(train.LABEL_SOURCES) and train.LABEL_TYPE == "standard"
        needs = [each for each in self.options.WHAT if each in ("knn", "probe")]
        if needs and not labelled:
            raise ConfigError(
                f"{WHERE}.WHAT: {' and '.join(needs)} need labels: set config.DATA.TRAIN."
                f"LABEL_SOURCES and LABEL_TYPE: standard, or choose label_free."
            )

    def on_phase_end(self, task: TaskView) -> None:
        if not task.train or not task.phase.complete or not self._due(task):
            return
        found = task.judged_features(self.options.IMAGES, self.options.NETWORK)
        computed = self._metrics(found.features, found.labels) if is_primary() else {}
        task.phase_results["online"] = broadcast_object(computed)

    def _due(self, task: TaskView) -> bool:
        made = task.phase.train_index + 1
        last = made == 1 + max(phase.train_index for phase in task.phases)
        return last or made % self.options.EVERY == 0

    def _metrics(self, features: Tensor, labels: Tensor) -> dict[str, float]:
        known = (labels >= 0).nonzero().flatten() if labels.ndim == 1 else labels.new_empty(0)
        metrics: dict[str, float] = {}
        if "knn" in self.options.WHAT:
            metrics |= _neighbours(features[known], labels[known], self.options.TOPK)
        if "probe" in self.options.WHAT:
            metrics |= _probe(features[known], labels[known])
        if "label_free" in self.options.WHAT:
            metrics |= {
                name: each.value
                for name, each in measure(Inputs(features), self.options.LABEL_FREE).items()
            }
        return metrics
