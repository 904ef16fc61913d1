"""The images whose labels are used, as tables that csv_filelist and DATA_LIMIT_SAMPLING.LIST read.

    few_labels/1_percent_seed0.csv      number, path, label

The protocol few_labels writes those of its draws, a training on few labels its own: with the same
seed these are the same images. Rank 0 draws from the labels alone, so the lists are the same on any
number of ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sslengine.atomic import write_whole
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.subset import draw_of_each_class
from sslengine.data.manifest.tables import escape_formula
from sslengine.data.options import DataOptions
from sslengine.engines.run import Run
from sslengine.engines.scoring import Sets
from sslengine.engines.stored import StoredSplit, paths_of
from sslengine.evaluate.few_shot import DRAWS, SHARES


def write_lists(
    stored: StoredSplit, sets: Sets, folder: Path, names: Sequence[str] = ()
) -> list[Path]:
    """names: of the classes; empty: labels are numbers."""
    labels, numbers = sets.labels, sets.numbers
    if labels is None or numbers is None or labels.ndim != 1:
        return []
    written = []
    for share in SHARES:
        for seed in range(DRAWS):
            rows = draw_of_each_class(labels, share, seed)
            images = numbers[rows]
            path = folder / f"{100 * share:g}_percent_seed{seed}.csv"
            _write(path, images, paths_of(stored.dataset, images), labels[rows], names)
            written.append(path)
    return written


def write_training_list(run: Run, path: Path) -> int:
    """List the images that TRAIN uses, and count them."""
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
    every = torch.arange(len(dataset))
    labels = torch.as_tensor(dataset.standard_labels[0]) if dataset.standard_labels else every
    names = dataset.classes[0].names if dataset.classes else ()
    _write(path, torch.as_tensor(dataset.rows), paths_of(dataset, every), labels, names)
    return len(dataset)


def _write(
    path: Path, numbers: Tensor, paths: Sequence[str], labels: Tensor, names: Sequence[str]
) -> None:
    called = [names[each] if names else each for each in labels.tolist()]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["number", "path", "label"])
    texts = (map(escape_formula, paths), map(escape_formula, called))
    table.writerows(zip(numbers.tolist(), *texts, strict=True))
    write_whole(path, text.getvalue().encode(errors="surrogateescape"))
