"""Make the parts of a run's page that come from images and features, and keep them in its folder.

    make_parts(folder, trust_config=False, notes=notes)    `sslengine report --map`
    make_live_parts(resolved, folder, notes)               at the end of a training

What is kept is made again only if the checkpoint or the images have changed; the map, if the run
was judged anew. A part that cannot be made, because images have moved or memory is short, is a
note: the others are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sslengine import catalog  # noqa: F401 - declares the names that a config has
from sslengine.atomic import write_json
from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.fingerprint import hash_here
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import world_size
from sslengine.errors import DataError, Preempted
from sslengine.evaluation.kept import Kept, digest_of
from sslengine.monitor.run_facts import REPORT, read_report
from sslengine.predictor.predictor import Predictor
from sslengine.report.data_check import find_facts
from sslengine.report.map_of_images import draw_map, read_features
from sslengine.report.parts import (
    FOLDER,
    MAP,
    PARTS,
    Album,
    Parts,
    digest_of_checkpoint,
    read_json,
    read_parts,
)
from sslengine.report.views_of_images import draw_masked, draw_patches, draw_views, open_training
from sslengine.trust import closed

# The config by which a run was judged.
JUDGED = "config_evaluate"
# Networks in larger checkpoints make no pictures at the end of a run.
SMALL = 200 * 2**20


def make_parts(folder: Path, *, trust_config: bool, notes: list[str]) -> Parts:
    """Make what is missing. notes: gets why a part is not there."""
    how: dict[str, Any] = {"trusted": trust_config, "judged": True}
    resolved = open_run(folder, as_trained=True, **how)
    with closed(resolved.opened):
        expect_no_links_out(folder)
    maker, judged = _Maker(folder, notes, trust_config), resolved
    if (folder / f"{JUDGED}.yaml").is_file():
        judged = open_run(folder, name=JUDGED, **how)
    with maker.part("map"), closed(judged.opened):
        maker.make_map(judged)
    return maker.make_others(resolved, judged)


def make_live_parts(resolved: Resolved, folder: Path, notes: list[str]) -> Parts:
    """What takes a few seconds, for a run that has just been trained by this config."""
    return _Maker(folder, notes, trusted=True, live=True).make_others(resolved, resolved)


class _Maker:
    def __init__(self, folder: Path, notes: list[str], trusted: bool, live: bool = False) -> None:
        self.folder, self.notes, self.trusted, self.live = folder, notes, trusted, live
        self.place = folder / FOLDER
        self.weights = digest_of_checkpoint(folder)
        self.kept = read_json(self.place / PARTS)
        self.album = Album(self.kept)
        self.maps = Kept(self.place, self.weights)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        try:
            yield
        except Preempted:
            raise
        except Exception as error:  # as many kinds as there are decoders and networks
            text = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: not made: {text}")

    def make_others(self, trained: Resolved, checked: Resolved) -> Parts:
        with self.part("views"), closed(trained.opened):
            self.make_views(trained)
        with self.part("check of the data"), closed(checked.opened):
            self.check_data(checked)
        with self.part("thumbnails"):
            # The map's come first; those that no part shows are removed.
            order = np.asarray((self.maps.get(MAP) or {}).get("keys", [])).tolist()
            for fact in self.kept.get("data", {}).get("made", []):
                order += fact["thumbs"]
            self.album.arrange(dict.fromkeys(order), self.kept)
            write_json(self.place / PARTS, self.kept)
        return read_parts(self.folder)

    def keep(self, name: str, key: str, make: Callable[[], Any]) -> None:
        """Make a part of parts.json, if it was not made by the same."""
        if self.kept.get(name, {}).get("key") != key:
            self.kept[name] = {"key": key, "made": make()}

    def make_map(self, resolved: Resolved) -> None:
        report = read_report(self.folder / REPORT)
        if not report:
            raise DataError(f"the run was not judged: `sslengine judge {self.folder}` comes first")
        by, held = (self.folder / f"{JUDGED}.yaml").read_text("utf-8"), self.maps.get(MAP)
        key = digest_of(by, repr(report.get("images")))
        if held is not None and str(held["key"]) == key and self.album.tiles:
            return
        found = read_features(resolved, self.folder)
        arrays, source = draw_map(found), found.dataset.sources[0]
        keys = [f"{_key(found.split, found.dataset)}:{number}" for number in found.numbers]
        for name, number, label in zip(keys, found.numbers, found.labels.tolist()):
            self.album.add(name, source, int(found.dataset.rows[number]), label)
        self.album.classes = [*found.classes]
        self.maps.put(MAP, {**arrays, "key": key, "fingerprint": found.fingerprint, "keys": keys})

    def make_views(self, resolved: Resolved) -> None:
        options, dataset = read(resolved.config, DataOptions).TRAIN, open_training(resolved)
        seed = read(resolved.config, RunOptions).SEED_VALUE
        key = digest_of(repr(asdict(options)), str(seed), hash_here(dataset))
        self.keep("views", key, lambda: [*map(asdict, draw_views(dataset, options))])
        self.keep("network", self.weights, lambda: self._of_network(dataset, options))

    def _of_network(self, dataset: SSLDataset, options: Any) -> list[Any]:
        found, model = list[Any](), None
        files = (self.folder / "checkpoints").rglob("*")
        is_small = max((each.stat().st_size for each in files), default=0) < SMALL
        if not self.live or (world_size() == 1 and is_small):
            with self.part("patches"):
                how: dict[str, Any] = {"device": "cpu", "trust_config": self.trusted}
                predictor = Predictor(self.folder, nearest=0, **how)
                model = predictor.model
                found += draw_patches(predictor)
        with self.part("hidden patches"):
            found = draw_masked(dataset, options, model) + found
        return [*map(asdict, found)]

    def check_data(self, resolved: Resolved) -> None:
        data, seed = (
            read(resolved.config, DataOptions),
            read(resolved.config, RunOptions).SEED_VALUE,
        )
        datasets = {}
        for split in ("TRAIN", "TEST"):
            options = getattr(data, split)
            if options.DATA_SOURCES:
                datasets[split] = SSLDataset(
                    options, split, seed, replace=False, hold_out=data.HOLD_OUT
                )
        datasets = {split: each for split, each in datasets.items() if each.stream is None}
        keys = {split: _key(split, each) for split, each in datasets.items()}
        self.keep("data", repr(keys), lambda: find_facts(datasets, keys, self.album))


def _key(split: str, dataset: SSLDataset) -> str:
    return f"{split.lower()}-{hash_here(dataset)[:12]}"
