"""The check of a run's data as facts of its page: counts, classes, copies, files to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.loading.dataset import SSLDataset
from sslengine.report.data_check import (
    Finding,
    OpenedImages,
    check_classes,
    describe,
    open_images,
)
from sslengine.report.mapped_images import spread
from sslengine.report.thumbnails import Album

FEWEST, MOST = 24, 4000  # images that are opened, of each split
SHOWN = 8  # thumbnails of a fact
CALLED = {"TRAIN": "training images", "TEST": "test images"}
LEAK = "what is scored on them says nothing of other images: take others for one of the splits"


def find_facts(
    datasets: Mapping[str, SSLDataset], keys: Mapping[str, str], album: Album, megapixels: float
) -> list[dict[str, Any]]:
    """Facts with the keys of their thumbnails, which are added to the album.

    keys: what the keys of each split's thumbnails begin with. megapixels: about so much is decoded
    of each split.
    """
    facts: list[dict[str, Any]] = []
    seen: dict[str, OpenedImages] = {}
    for split, dataset in datasets.items():
        source, rows = dataset.sources[0], np.asarray(dataset.rows)
        facts.append(_as_fact(Finding(CALLED[split], len(rows))))
        if split == "TRAIN" and source.num_classes:
            facts += map(_as_fact, check_classes(source, source.labels()[rows]))
        opened = open_images(source, _affordable(source, rows, megapixels).tolist())
        seen[split] = opened
        pictured = {"copies": [each for pair in opened.copies for each in pair],
                    "transparent": opened.transparent, "rotated": opened.turned}  # fmt: skip
        for each in describe(opened):
            rows_shown = pictured.get(each.what, [])[:SHOWN]
            shown = [*_pictured(dataset, keys[split], rows_shown, album)]
            facts.append(_as_fact(each, split if len(datasets) > 1 else "", shown))
    if len(seen) > 1:
        train, test = (seen[split].pixels for split in ("TRAIN", "TEST"))
        same = [row for pixels, row in test.items() if pixels in train]
        advice = LEAK if same else ""
        shown = [*_pictured(datasets["TEST"], keys["TEST"], same[:SHOWN], album)]
        what = "test images that are training images"
        facts.append(_as_fact(Finding(what, len(same), advice), "", shown))
    return facts


def _as_fact(finding: Finding, split: str = "", thumbs: Sequence[str] = ()) -> dict[str, Any]:
    value = f"{finding.value:,}" if isinstance(finding.value, int) else str(finding.value)
    what = f"{CALLED[split]}: {finding.what}" if split else finding.what
    return {"what": what, "value": value, "advice": finding.advice, "thumbs": [*thumbs]}


def _affordable(source: Any, rows: NDArray[np.int64], megapixels: float) -> NDArray[np.int64]:
    """Rows evenly apart: as many as the size of some of the images allows."""
    sizes = []
    for row in spread(rows, min(5, len(rows))).tolist():
        try:
            sizes.append(float(np.prod(np.shape(source.image(row))[:2])))
        except Exception:  # decoders raise many kinds; it is counted as unreadable later
            continue
    each = float(np.median(sizes)) if sizes else 1e6
    count = int(min(MOST, max(FEWEST, megapixels * 1e6 / each)))
    return spread(rows, min(count, len(rows)))


def _pictured(dataset: SSLDataset, key: str, rows: list[int], album: Album) -> Iterator[str]:
    source = dataset.sources[0]
    numbers = {int(row): number for number, row in enumerate(dataset.rows)} if rows else {}
    for row in rows:
        name = f"{key}:{numbers[row]}"
        if name not in album.entries:
            album.add(name, source.image(row), source.relative_path(row))
        yield name
