"""`nearest_neighbor_test`: VISSL's kNN classification of frozen features, for each layer.

One search serves all values of config.NEAREST_NEIGHBOR.TOPK. VISSL's files are written into the
run's folder; predictions are those of the last k:

    kNN_{layer}_output_predictions.npy     test images x classes, the best class first
    kNN_{layer}_output_targets.npy
    kNN_{layer}_output_image_indices.npy
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.config.sections import read
from sslengine.contrib.vissl_benchmarks.inputs import benchmark_inputs
from sslengine.contrib.vissl_benchmarks.report import Report
from sslengine.engines.features import save
from sslengine.engines.run import Run
from sslengine.engines.scoring import count_used, note_few
from sslengine.evaluate.knn import count_votes, knn_scores, score_votes, search_k
from sslengine.evaluate.linear import mean_average_precision
from sslengine.evaluate.options import NearestNeighborOptions
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.store import file_name
from sslengine.registry import register_engine


@register_engine("nearest_neighbor_test")
def nearest_neighbor_test(run: Run) -> None:
    """All ranks compute features; rank 0 searches, and the other ranks do not wait."""
    options = read(run.config, NearestNeighborOptions)
    inputs = benchmark_inputs(run, options.FEATURES.PATH, "config.NEAREST_NEIGHBOR.FEATURES.PATH")
    report = Report(run, "nearest_neighbor_test")
    for layer in inputs.layers:
        train, labels, test, wanted = inputs.sets(layer)
        train, test = (each.to(run.device) for each in (train, test))
        found, scores = _classified((train, labels.to(run.device), test), wanted, options)
        report.add(layer, found)
        prefix = f"kNN_{file_name(layer)}_output"
        ranked = scores.argsort(dim=1, descending=True, stable=True).to(torch.int32)
        save(run.run_dir / f"{prefix}_predictions.npy", ranked.cpu().numpy())
        save(run.run_dir / f"{prefix}_targets.npy", wanted.numpy())
        save(run.run_dir / f"{prefix}_image_indices.npy", inputs.test_indices(layer).numpy())
    report.end()


def _classified(
    sets: tuple[Tensor, Tensor, Tensor], wanted: Tensor, options: NearestNeighborOptions
) -> tuple[Outcome, Tensor]:
    """The metrics for each k, and scores of the classes for the last k."""
    used = count_used(options, len(sets[0]))
    notes = tuple(note_few(k, fewer) for k, fewer in used.items() if k > fewer)
    metrics = {}
    last = used[options.neighbours[-1]]
    if sets[1].ndim > 1:
        scores = knn_scores(*sets, [*used.values()], options.SIGMA, options.metric)
        for k, fewer in used.items():
            metrics[f"k={k} mAP"] = mean_average_precision(scores[fewer], wanted)
        return Outcome(metrics, notes), scores[last]
    train, labels, test = sets
    nearest = search_k(train, test, max(used.values()), options.metric)
    found = score_votes(
        nearest, labels, wanted.to(labels.device), [*used.values()], options.SIGMA, (1, 5)
    )
    for k, fewer in used.items():
        metrics[f"k={k} top1"], metrics[f"k={k} top5"] = found[fewer]
    return Outcome(metrics, notes), count_votes(nearest, labels, last, options.SIGMA)
