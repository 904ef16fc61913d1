"""`extract_label_predictions`: the classes that a model with a classifier predicts.

VISSL's files are written into config.EXTRACT_FEATURES.OUTPUT_DIR, or the run's folder, for each
output of the model:

    rank0_{split}_{layer}_predictions.npy    images x k: the best classes first; k is the largest of
                                             config.METERS.accuracy_list_meter.topk_values
    rank0_{split}_{layer}_conf_scores.npy    images x classes: softmax of the output
    rank0_{split}_{layer}_targets.npy, _inds.npy, _images.npy
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sslengine.atomic import write_json
from sslengine.config.sections import read
from sslengine.contrib.vissl_benchmarks.inputs import stored_splits
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import StoredSplit, paths_of, save, splits
from sslengine.engines.options import ExtractFeaturesOptions
from sslengine.engines.run import Run, check_results_here
from sslengine.errors import ConfigError
from sslengine.evaluate.store import Store, file_name
from sslengine.meters import MetersOptions
from sslengine.meters.base import build_meters, mask_absent, present_classes
from sslengine.meters.top_k import AccuracyListMeter, TopKMeter
from sslengine.registry import register_engine


@register_engine("extract_label_predictions")
def extract_label_predictions(run: Run) -> None:
    """All ranks compute outputs; rank 0 writes the files, and the other ranks do not wait."""
    meter = _meter(run)
    found = stored_splits(run, splits(run), labels=False)
    if not is_primary():
        return
    data = read(run.config, DataOptions)
    folder = Path(read(run.config, ExtractFeaturesOptions).OUTPUT_DIR or run.run_dir)
    results: dict[str, Any] = {}
    for split, stored in found.items():
        store = stored.stores["trained"]
        for layer in store.layers:
            prefix = f"rank0_{split.lower()}_{file_name(layer)}"
            outputs = store.layer(layer).tensor().float()
            if split == "TEST" and read(run.config, MetersOptions).model_output_mask:
                outputs = mask_absent(outputs, present_classes(store.targets))
            _write(stored, store, outputs, meter, folder / prefix)
            if getattr(data, split).LABEL_TYPE == "standard":
                metrics = _measured(outputs, store.targets, meter)
                results.setdefault(split.lower(), {})[layer] = metrics
                shown = ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())
                run.say(f"{split.lower()}: {layer}: {shown}")
    run.say(f"  files       {folder}")
    write_json(run.run_dir / "extract_label_predictions.json", results)
    check_results_here(run, results)


def _meter(run: Run) -> TopKMeter:
    found = build_meters(read(run.config, MetersOptions)) or [AccuracyListMeter()]
    if len(found) != 1 or not isinstance(found[0], TopKMeter):
        named = [each.name for each in found]
        raise ConfigError(
            f"config.METERS.names: expected accuracy_list_meter alone, whose topk_values say how "
            f"many classes are predicted; got {named}."
        )
    return found[0]


def _write(
    stored: StoredSplit, store: Store, outputs: Tensor, meter: TopKMeter, prefix: Path
) -> None:
    columns = {
        "predictions": outputs.topk(max(meter.topk_values), dim=1).indices.numpy(),
        "conf_scores": outputs.softmax(dim=1).numpy(),
        "targets": store.targets.reshape(len(outputs), -1).numpy(),
        "inds": store.indices.numpy(),
        "images": np.array(paths_of(stored.dataset, store.indices)),
    }
    for kind, column in columns.items():
        save(prefix.with_name(f"{prefix.name}_{kind}.npy"), column)


def _measured(outputs: Tensor, targets: Tensor, meter: TopKMeter) -> dict[str, float]:
    """The metrics of one output."""
    one = type(meter)(topk_values=meter.topk_values)
    one.update(outputs, targets)
    assert one.totals is not None
    return {name: of["0"] for name, of in one.measure(one.totals.tolist()).items() if "0" in of}
