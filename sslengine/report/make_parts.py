"""Make the parts of a run's page that come from images and features, and keep them in its folder.

    make_parts(folder, trust_config=False, want_map=True, notes=notes)    `sslengine report --map`
    make_live_parts(resolved, folder, notes)                              at the end of a training

What is kept is made again only if the checkpoint or the images have changed. A part that cannot be
made, because images have moved or memory is short, is a note: the others are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

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
from sslengine.report.data_facts import find_facts
from sslengine.report.map_of_images import draw_map
from sslengine.report.mapped_images import (
    JUDGED,
    MappedFeatures,
    MappedSet,
    open_mapped,
    read_features,
)
from sslengine.report.network_pictures import draw_patches
from sslengine.report.parts import (
    DATA,
    FOLDER,
    MAP,
    THUMBS,
    VIEWS,
    Parts,
    digest_of_checkpoint,
    read_json,
    read_parts,
)
from sslengine.report.thumbnails import Album
from sslengine.report.views_of_images import draw_masked, draw_views, open_training
from sslengine.trust import closed

# What the check of the data decodes of each split: at the end of a run, and when it is asked for.
MEGAPIXELS_LIVE, MEGAPIXELS = 100.0, 500.0
# Networks in larger checkpoints make no pictures at the end of a run.
SMALL = 200 * 2**20


def make_parts(folder: Path, *, trust_config: bool, want_map: bool, notes: list[str]) -> Parts:
    """Make what is missing, the map if it is wanted. notes: gets why a part is not there."""
    resolved = open_run(folder, trusted=trust_config, judged=True, as_trained=True)
    maker = _Maker(folder, notes, trust_config, Album.read(folder / FOLDER / THUMBS))
    with closed(resolved.opened):
        expect_no_links_out(folder)
    if want_map:
        with maker.part("map"):
            maker.make_map()
    maker.make_views(resolved)
    with maker.part("data"):
        judged = (folder / f"{JUDGED}.yaml").is_file()
        name = JUDGED if judged else "config"
        checked = open_run(folder, trusted=trust_config, judged=True, name=name)
        maker.check_data(checked, MEGAPIXELS)
    maker.save_thumbnails()
    return read_parts(folder)


def make_live_parts(resolved: Resolved, folder: Path, notes: list[str]) -> Parts:
    """What takes a few seconds, for a run that has just been trained by this config."""
    maker = _Maker(folder, notes, True, Album.read(folder / FOLDER / THUMBS), live=True)
    maker.make_views(resolved)
    with maker.part("data"):
        maker.check_data(resolved, MEGAPIXELS_LIVE)
    maker.save_thumbnails()
    return read_parts(folder)


@dataclass
class _Maker:
    folder: Path
    notes: list[str]
    trusted: bool
    album: Album
    live: bool = False

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        try:
            yield
        except Preempted:
            raise
        except Exception as error:  # as many kinds as there are decoders and networks
            text = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: not made: {text}")

    @property
    def place(self) -> Path:
        return self.folder / FOLDER

    # ---- map

    def make_map(self) -> None:
        weights = digest_of_checkpoint(self.folder)
        mapped = open_mapped(self.folder, self.trusted)
        with closed(mapped.run.resolved.opened):
            kept, digest = Kept(self.place, weights), mapped.digest(weights)
            held = kept.get(MAP)
            if held is not None and str(held["digest"]) == digest and self.album.entries:
                return
            found = read_features(mapped)
            arrays = draw_map(found)
            keys = self._add_thumbnails(mapped, found)
            about = {"fingerprint": found.fingerprint, "keys": keys}
            kept.put(MAP, {**arrays, "digest": digest, "about": json.dumps(about)})

    def _add_thumbnails(self, mapped: MappedSet, found: MappedFeatures) -> list[str]:
        album, begin = self.album, _key(mapped.hash, mapped.split)
        album.classes, keys = [*found.classes], []
        for number, name, label in zip(found.numbers.tolist(), found.names, found.labels.tolist()):
            keys.append(f"{begin}:{number}")
            if keys[-1] not in album.entries:
                try:
                    image = mapped.image(number)
                except Exception:  # it could be read when its features were computed
                    image = Image.new("RGB", (album.side or 1,) * 2, "grey")
                album.add(keys[-1], image, name)
            album.entries[keys[-1]] = (name, label)
        return keys

    # ---- views

    def make_views(self, resolved: Resolved) -> None:
        kept, weights = read_json(self.place / VIEWS), digest_of_checkpoint(self.folder)
        options = read(resolved.config, DataOptions).TRAIN
        with self.part("views"), closed(resolved.opened):
            dataset = open_training(resolved)
            key = digest_of(repr(asdict(options)), str(dataset._seed), hash_here(dataset))
            network = weights if kept.get("views") and kept.get("key") == key else ""
            if network and kept.get("weights") == weights:
                return
            made: dict[str, Any] = {"key": key, "weights": weights}
            made["views"] = kept["views"] if network else _plain(draw_views(dataset, options))
            made["network"] = self._network(dataset, options)
            write_json(self.place / VIEWS, made)

    def _network(self, dataset: SSLDataset, options: Any) -> list[dict[str, Any]]:
        found: list[Any] = []
        predictor: Predictor | None = None
        if not self.live or (world_size() == 1 and self._is_small()):
            with self.part("pictures of the network"):
                predictor = Predictor(
                    self.folder, nearest=0, device="cpu", trust_config=self.trusted
                )
        with self.part("hidden patches"):
            found += draw_masked(dataset, options, predictor.model if predictor else None)
        if predictor is not None:
            with self.part("patches"), closed(predictor.resolved.opened):
                found += draw_patches(predictor)
        return _plain(found)

    def _is_small(self) -> bool:
        files = [file for file in (self.folder / "checkpoints").rglob("*") if file.is_file()]
        return max((file.stat().st_size for file in files), default=0) < SMALL

    # ---- data

    def check_data(self, resolved: Resolved, megapixels: float) -> None:
        data = read(resolved.config, DataOptions)
        seed = read(resolved.config, RunOptions).SEED_VALUE
        kept = read_json(self.place / DATA)
        with closed(resolved.opened):
            datasets = _open_splits(data, seed)
            keys = {split: _key(hash_here(each), split) for split, each in datasets.items()}
            if kept.get("keys") == keys and kept.get("megapixels", 0) >= megapixels:
                return
            facts = find_facts(datasets, keys, self.album, megapixels)
        write_json(self.place / DATA, {"keys": keys, "megapixels": megapixels, "facts": facts})

    def save_thumbnails(self) -> None:
        """The map's come first; those that no part shows are removed."""
        with self.part("thumbnails"):
            held = Kept(self.place, digest_of_checkpoint(self.folder)).get(MAP)
            order = json.loads(str(held["about"]))["keys"] if held is not None else []
            facts = read_json(self.place / DATA).get("facts", [])
            order += [key for fact in facts for key in fact["thumbs"]]
            self.album.save(self.place / THUMBS, order)


def _key(hash_of_images: str, split: str) -> str:
    return f"{split.lower()}-{hash_of_images[:12]}"


def _plain(views: list[Any]) -> list[dict[str, Any]]:
    return [asdict(each) for each in views]


def _open_splits(data: DataOptions, seed: int) -> Mapping[str, SSLDataset]:
    found = {}
    for split in ("TRAIN", "TEST"):
        options = getattr(data, split)
        if options.DATA_SOURCES:
            dataset = SSLDataset(options, split, seed, replace=False, hold_out=data.HOLD_OUT)
            if dataset.stream is None:
                found[split] = dataset
    return found
