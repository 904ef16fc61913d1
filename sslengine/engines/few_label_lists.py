"""The images that the protocol few_labels draws, as tables that the source csv_filelist reads.

    few_labels/1_percent_seed0.csv      number, path, label

So a fine-tuning has the labels of the same images. Rank 0 draws from the labels alone: the lists
are the same on any number of ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from sslengine.atomic import write_whole
from sslengine.engines.scoring import Sets
from sslengine.engines.stored import StoredSplit
from sslengine.evaluation.few_labels import DRAWS, SHARES, share_of_each_class


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
            rows = share_of_each_class(labels, share, seed)
            images = numbers[rows]
            called = [names[each] if names else each for each in labels[rows].tolist()]
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(["number", "path", "label"])
            table.writerows(zip(images.tolist(), stored.paths(images), called))
            path = folder / f"{100 * share:g}_percent_seed{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.getvalue().encode(errors="surrogateescape"))
            written.append(path)
    return written
