"""`extract_features`: write a trained model's features of each image as .npy files.

The weights are those of config.MODEL.WEIGHTS_INIT, or of the newest checkpoint of the run's folder.

Files have VISSL's names: `rank0_chunk0_train_res5_{features,targets,inds}.npy`.
config.MODEL.FEATURE_EVAL_SETTINGS chooses the layers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.atomic import write_whole
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import rank
from sslengine.engine.build import build_run_precision
from sslengine.engines.features import (
    Features,
    extract,
    join,
    layers_of,
    ordered_feed,
)
from sslengine.engines.options import ExtractFeaturesOptions
from sslengine.engines.run import Run
from sslengine.registry import register_engine
from sslengine.trained import load_here


@register_engine("extract_features")
def extract_features(run: Run) -> None:
    options = read(run.config, ExtractFeaturesOptions)
    folder = Path(options.OUTPUT_DIR or run.run_dir / "features")
    model, weights = load_here(run.config, run.run_dir, run.device)
    precision = build_run_precision(run.config, run.device)
    run.describe()
    run.console.print(f"  weights     {weights}")
    folder.mkdir(parents=True, exist_ok=True)
    classes: list[Classes] = []
    for split in splits(run):  # TRAIN comes first
        feed = ordered_feed(run.config, split, run.device, classes)
        classes = feed.classes
        options_of_split = getattr(read(run.config, DataOptions), split)
        batches = extract(layers_of(model), feed, options_of_split, precision)
        for number, chunk in enumerate(chunks(batches, options.CHUNK_THRESHOLD)):
            _write(chunk, folder, f"rank{rank()}_chunk{number}_{split.lower()}")
        feed.close()
        run.console.print(f"{split.lower()}: features of {feed.num_samples} images in {folder}")
    barrier()


def splits(run: Run) -> list[str]:
    return ["TRAIN", "TEST"] if read(run.config, RunOptions).TEST_MODEL else ["TRAIN"]


def chunks(batches: Iterator[Features], images: int) -> Iterator[Features]:
    """Join batches up to `images` images; -1: all in one chunk, 0: one chunk per batch."""
    waiting: list[Features] = []
    for batch in batches:
        waiting.append(batch)
        if 0 <= images <= sum(len(each.indices) for each in waiting):
            yield join(waiting)
            waiting = []
    if waiting:
        yield join(waiting)


def save(path: Path, array: NDArray[Any]) -> None:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_whole(path, content.getvalue())


def _write(chunk: Features, folder: Path, prefix: str) -> None:
    for layer, rows in chunk.layers.items():
        save(folder / f"{prefix}_{layer}_features.npy", rows.numpy())
        save(folder / f"{prefix}_{layer}_targets.npy", chunk.targets.numpy())
        save(folder / f"{prefix}_{layer}_inds.npy", chunk.indices.numpy())
