"""Make the parts of a run's page that come from images and features, and keep them in its folder.

    make_parts(folder, trust_config=False, want_map=True, notes=notes)    `sslengine report --map`
    make_live_parts(resolved, folder, notes)                              at the end of a training

What is kept is made again only if the checkpoint or the images have changed. A part that cannot be
made, because images have moved or memory is short, is a note: the others are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
from sslengine.errors import Preempted
from sslengine.evaluation.kept import Kept, digest_of
from sslengine.predictor.predictor import Predictor
from sslengine.report.data_check import find_facts
from sslengine.report.map_of_images import draw_map, open_mapped, read_features
from sslengine.report.parts import (
    DATA,
    FOLDER,
    JUDGED,
    MAP,
    THUMBS,
    VIEWS,
    Parts,
    digest_of_checkpoint,
    read_json,
    read_parts,
)
from sslengine.report.thumbnails import Album
from sslengine.report.views_of_images import draw_masked, draw_patches, draw_views, open_training
from sslengine.trust import closed

# What the check of the data decodes of each split: at the end of a run, and when it is asked for.
MEGAPIXELS_LIVE, MEGAPIXELS = 100.0, 500.0
# Networks in larger checkpoints make no pictures at the end of a run.
SMALL = 200 * 2**20


def make_parts(folder: Path, *, trust_config: bool, want_map: bool, notes: list[str]) -> Parts:
    """Make what is missing, the map if it is wanted. notes: gets why a part is not there."""
    how: dict[str, Any] = {"trusted": trust_config, "judged": True}
    resolved = open_run(folder, as_trained=True, **how)
    with closed(resolved.opened):
        expect_no_links_out(folder)
    maker = _Maker(folder, notes, trust_config)
    if want_map:
        with maker.part("map"):
            maker.make_map()
    judged = (folder / f"{JUDGED}.yaml").is_file()
    checked = open_run(folder, name=JUDGED, **how) if judged else resolved
    return maker.make_others(resolved, checked, MEGAPIXELS)


def make_live_parts(resolved: Resolved, folder: Path, notes: list[str]) -> Parts:
    """What takes a few seconds, for a run that has just been trained by this config."""
    maker = _Maker(folder, notes, trusted=True, live=True)
    return maker.make_others(resolved, resolved, MEGAPIXELS_LIVE)


@dataclass
class _Maker:
    folder: Path
    notes: list[str]
    trusted: bool
    live: bool = False

    def __post_init__(self) -> None:
        self.place = self.folder / FOLDER
        self.album = Album(self.place / THUMBS)
        self.weights = digest_of_checkpoint(self.folder)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        try:
            yield
        except Preempted:
            raise
        except Exception as error:  # as many kinds as there are decoders and networks
            text = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: not made: {text}")

    def make_others(self, trained: Resolved, checked: Resolved, megapixels: float) -> Parts:
        with self.part("views"), closed(trained.opened):
            self.make_views(trained)
        with self.part("check of the data"), closed(checked.opened):
            self.check_data(checked, megapixels)
        with self.part("thumbnails"):
            self.save_thumbnails()
        return read_parts(self.folder)

    def make_map(self) -> None:
        mapped = open_mapped(self.folder, self.trusted)
        with closed(mapped.run.resolved.opened):
            hash, kept = hash_here(mapped.dataset), Kept(self.place, self.weights)
            view = repr([dict(each) for each in mapped.options.TRANSFORMS])
            digest = digest_of(hash, mapped.split, view, str(mapped.judged))
            held, album = kept.get(MAP), self.album
            if held is not None and str(held["digest"]) == digest and album.entries:
                return
            found = read_features(mapped)
            mapped.run.say(f"map: placing {len(found.numbers)} images by their features")
            arrays = draw_map(found)
            keys = [f"{_key(mapped.split, hash)}:{number}" for number in found.numbers]
            source, rows = mapped.dataset.sources[0], mapped.dataset.rows
            for key, number, name, label in zip(keys, found.numbers, found.names, found.labels):
                if key not in album.entries:
                    album.add(key, source.image(int(rows[number])), name)
                album.entries[key] = (name, int(label))
            album.classes = [*found.classes]
            more = {"digest": digest, "fingerprint": found.fingerprint, "keys": keys}
            kept.put(MAP, {**arrays, **more})

    def make_views(self, resolved: Resolved) -> None:
        kept, options = read_json(self.place / VIEWS), read(resolved.config, DataOptions).TRAIN
        dataset, seed = open_training(resolved), read(resolved.config, RunOptions).SEED_VALUE
        key = digest_of(repr(asdict(options)), str(seed), hash_here(dataset))
        same = kept.get("key") == key
        if not same or kept.get("weights") != self.weights:
            views = kept["views"] if same else [*map(asdict, draw_views(dataset, options))]
            network = [*map(asdict, self._of_network(dataset, options))]
            made = {"key": key, "weights": self.weights, "views": views, "network": network}
            write_json(self.place / VIEWS, made)

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
            return draw_masked(dataset, options, model) + found
        return found

    def check_data(self, resolved: Resolved, megapixels: float) -> None:
        data, kept = read(resolved.config, DataOptions), read_json(self.place / DATA)
        splits = {split: getattr(data, split) for split in ("TRAIN", "TEST")}
        how: dict[str, Any] = {"replace": False, "hold_out": data.HOLD_OUT}
        seed = read(resolved.config, RunOptions).SEED_VALUE
        datasets = {split: SSLDataset(options, split, seed, **how)
                    for split, options in splits.items() if options.DATA_SOURCES}  # fmt: skip
        datasets = {split: each for split, each in datasets.items() if each.stream is None}
        keys = {split: _key(split, hash_here(each)) for split, each in datasets.items()}
        if kept.get("keys") != keys or kept.get("megapixels", 0) < megapixels:
            facts = find_facts(datasets, keys, self.album, megapixels)
            made = {"keys": keys, "megapixels": megapixels, "facts": facts}
            write_json(self.place / DATA, made)

    def save_thumbnails(self) -> None:
        """The map's come first; those that no part shows are removed."""
        held = Kept(self.place, self.weights).get(MAP) or {}
        order = np.asarray(held.get("keys", [])).tolist()
        for fact in read_json(self.place / DATA).get("facts", []):
            order += fact["thumbs"]
        self.album.save(dict.fromkeys(order))


def _key(split: str, hash_of_images: str) -> str:
    return f"{split.lower()}-{hash_of_images[:12]}"
