"""Make the parts of a run's page that come from images and features, and keep them in its folder.

    make_parts(folder, trust_config=False, notes=notes)    `sslengine report --map`
    make_live_parts(resolved, folder, notes)               at the end of a training

What is kept is made again only if the checkpoint or the images have changed; the map, if the run
was judged again. A part that cannot be made, because images have moved or memory is short, is a
note: the others are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from sslengine.evaluate.store import digest
from sslengine.monitor.run_facts import REPORT, read_report
from sslengine.predictor.predictor import Predictor
from sslengine.report.content import Views
from sslengine.report.data_check import find_facts
from sslengine.report.map_of_images import make_map
from sslengine.report.parts import PARTS, Album, Parts, read_kept, read_parts
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
    judged = (folder / f"{JUDGED}.yaml").is_file()
    checked = open_run(folder, name=JUDGED, **how) if judged else resolved
    return _Maker(folder, notes, trust_config).make(resolved, checked)


def make_live_parts(resolved: Resolved, folder: Path, notes: list[str]) -> Parts:
    """Make the parts that take a few seconds, for a run just trained by this config."""
    return _Maker(folder, notes, trusted=True, live=True).make(resolved, resolved)


class _Maker:
    def __init__(self, folder: Path, notes: list[str], trusted: bool, live: bool = False) -> None:
        self.folder, self.notes, self.trusted, self.live = folder, notes, trusted, live
        self.kept = read_kept(folder)

    def make(self, trained: Resolved, checked: Resolved) -> Parts:
        with self.part("views"), closed(trained.opened):
            self.make_views(trained)
        with self.part("images"), closed(checked.opened):
            self.make_images(checked)
        write_json(self.folder / PARTS, self.kept)
        return read_parts(self.folder)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        try:
            yield
        except Preempted:
            raise
        except Exception as error:  # as many kinds as there are decoders and networks
            text = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: not made: {text}")

    def make_views(self, resolved: Resolved) -> None:
        options, dataset = read(resolved.config, DataOptions).TRAIN, open_training(resolved)
        seed = read(resolved.config, RunOptions).SEED_VALUE
        files = (self.folder / "checkpoints").rglob("*")
        is_small = max((each.stat().st_size for each in files), default=0) < SMALL
        loads = not self.live or (world_size() == 1 and is_small)

        def make() -> list[dict[str, Any]]:
            views, predictor = draw_views(dataset, options), None
            patches: list[Views] = []
            with self.part("patches"):
                if loads:
                    how: dict[str, Any] = {"device": "cpu", "trust_config": self.trusted}
                    predictor = Predictor(self.folder, nearest=0, **how)
                    patches = draw_patches(predictor)
            with self.part("hidden patches"):
                views += draw_masked(dataset, options, predictor)
            return [*map(asdict, [*views, *patches])]

        key = digest(repr(options), f"{seed} {loads}", hash_here(dataset))
        if self.kept.get("views", {}).get("key") != key:
            self.kept["views"] = {"key": key, "made": make()}

    def make_images(self, resolved: Resolved) -> None:
        """Make the map, the check of the data, and thumbnails of what they show."""
        data, report = read(resolved.config, DataOptions), read_report(self.folder / REPORT)
        seed = read(resolved.config, RunOptions).SEED_VALUE
        splits = [split for split in ("TRAIN", "TEST") if getattr(data, split).DATA_SOURCES]
        how: dict[str, Any] = {"replace": False, "hold_out": data.HOLD_OUT}
        found = {split: SSLDataset(getattr(data, split), split, seed, **how) for split in splits}
        found = {split: each for split, each in found.items() if each.stream is None}
        key = digest(*map(hash_here, found.values()), str(report.get("scores")))
        before = self.kept.get("images", {})
        if before and (self.live or before["key"] == key):
            return
        album, made = Album(), dict[str, Any](map=None, facts=[])
        if not self.live:
            with self.part("map"):
                if not report:
                    raise DataError(f"`sslengine judge {self.folder}` comes first")
                made["map"] = make_map(resolved, self.folder, album)
        with self.part("check of the data"):
            made["facts"] = [*map(asdict, find_facts(found, album))]
        thumbs = album.join()
        made["thumbs"] = thumbs and asdict(thumbs)
        self.kept["images"] = {"key": key if made["map"] else "", "made": made}
