"""`HOOKS.ONLINE_EVAL`: how good the features are, while the run trains.

After every EVERY-th train phase, and the last, the features of IMAGES training images are computed
as for an evaluation (resized, not augmented), and the metrics of WHAT added to the phase's results:

    online.knn_20      accuracy of the 20 nearest neighbours among the other images, in percent
    online.linear      of a linear probe, fitted on one half of the images and scored on the other
    online.rankme ...  metrics that need no labels

The run does not change by a bit. `CHECKPOINT.BEST.METRIC: online.knn20` (short for
train.online.knn_20) keeps the best one.
"""

from __future__ import annotations

import logging

from torch import Tensor

from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.knn import knn_within
from sslengine.evaluate.label_free.metric import Inputs, measure
from sslengine.evaluate.linear import linear_probe
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import OnlineEvalOptions
from sslengine.registry import register_hook

log = logging.getLogger("sslengine")
WHERE = "config.HOOKS.ONLINE_EVAL"


@register_hook("online_eval", options=OnlineEvalOptions)
class OnlineEval(Hook):
    """Cost: one forward of the network for each of IMAGES images each time."""

    def __init__(self, options: OnlineEvalOptions) -> None:
        self.options = options

    def on_start(self, task: Task) -> None:
        if task.train_feed is None:
            raise ConfigError(f"{WHERE}.EVERY: this run only tests; set it to 0.")
        labelled = bool(read(task.config, DataOptions).TRAIN.LABEL_SOURCES)
        needs = [each for each in self.options.WHAT if each != "label_free"]
        if needs and not labelled:
            raise ConfigError(f"{WHERE}.WHAT: {needs}: set config.DATA.TRAIN.LABEL_SOURCES.")

    def on_phase_end(self, task: Task) -> None:
        if not task.train or not task.phase.complete:
            return
        made = task.phase.train_index + 1
        last = made == 1 + max(phase.train_index for phase in task.phases)
        if last or made % self.options.EVERY == 0:
            found = task.compute_features(self.options.IMAGES, self.options.NETWORK)
            computed = self._evaluate(found.features, found.labels) if is_primary() else {}
            task.phase_results["online"] = broadcast_object(computed)

    def _evaluate(self, features: Tensor, labels: Tensor) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if labels.ndim == 1:
            known = labels >= 0
            metrics |= self._score_labels(features[known], labels[known])
        elif self.options.WHAT != ["label_free"]:
            log.warning("%s.WHAT: images have several classes; knn and probe are left out.", WHERE)
        if "label_free" in self.options.WHAT:
            found = measure(Inputs(features), self.options.LABEL_FREE)
            metrics |= {name: each.value for name, each in found.items()}
        return metrics

    def _score_labels(self, features: Tensor, labels: Tensor) -> dict[str, float]:
        metrics: dict[str, float] = {}
        ks = [k for k in self.options.TOPK if k < len(labels)]
        try:
            if "knn" in self.options.WHAT and ks:
                found = knn_within(features, labels, ks)
                metrics |= {f"knn_{k}": value for k, (value,) in found.items()}
            if "probe" in self.options.WHAT:
                half = len(labels) // 2
                sets = features[:half], labels[:half], features[half:], labels[half:]
                metrics["linear"] = linear_probe(*sets).test_accuracy
        except DataError as error:  # one class, features that are not finite
            log.warning("%s: %s", WHERE, error)
        return metrics
