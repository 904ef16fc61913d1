"""`copies` of EVALUATE.PROTOCOLS: do changed copies of images find their originals, as on Copydays?

The descriptor is DINO's: the class token, and the generalised mean of the patches with power 4.
Without a class token the final feature takes its place; of raw pixels it is the image at 16 x 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslengine.contrib.retrieval.on_disk import SUFFIXES, images_of, shown_number
from sslengine.data.judged_view import described
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import is_primary
from sslengine.engines.dense import judged_trunk, last_map, networks_with, shape_map
from sslengine.engines.features import Compute, Network, save
from sslengine.engines.on_images import Found, Judged
from sslengine.errors import DataError
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.retrieval import Whitening, copy_detection, gem
from sslengine.monitor.run_facts import PIXELS
from sslengine.registry import PROTOCOLS

WHERE = "config.EVALUATE.COPIES"
LAYER, POWER = "class token + GeM", 4.0
BATCH = 16


@dataclass(frozen=True)
class Copies:
    originals: Sequence[Path]
    # By kind of change: the copies, and the number of the original of each; -1: there is none.
    kinds: Mapping[str, tuple[Sequence[Path], Sequence[int]]]


def read_copies(folder: Path) -> Copies:
    """The original of a copy has its name or, as in Copydays, its number without the last two
    digits."""
    originals = images_of(folder / "original")
    names = {path.stem: number for number, path in enumerate(originals)}
    shown = {shown_number(path): number for number, path in enumerate(originals)}
    shown.pop(None, None)
    kinds = {}
    for each in sorted(filter(Path.is_dir, folder.rglob("*"))):
        kind = each.relative_to(folder).as_posix()
        if kind.partition("/")[0] == "original" or not _have_images(each):
            continue
        paths = images_of(each)
        of = [names.get(path.stem, shown.get(shown_number(path), -1)) for path in paths]
        kinds[kind] = paths, of
    if not any(number >= 0 for _, numbers in kinds.values() for number in numbers):
        raise DataError(
            f"{folder}: no folder has copies of images in original/, which have their names, or "
            f"their numbers without the last two digits."
        )
    return Copies(originals, kinds)


def _have_images(folder: Path) -> bool:
    return any(each.suffix.lower() in SUFFIXES for each in folder.iterdir())


@PROTOCOLS.register("copies")
def judge_copies(judged: Judged) -> Found:
    """Collective."""
    options = judged.EVALUATE.COPIES
    if not options.PATH:
        raise DataError(f"{WHERE}.PATH names no folder of originals and copies.")
    images = read_copies(Path(options.PATH))
    more = images_of(Path(options.DISTRACTORS)) if options.DISTRACTORS else []
    others = images_of(Path(options.WHITENING)) if options.WHITENING else []
    maker = _Maker.of(judged)
    database = maker.rows("database", [*images.originals, *more])
    queries = {kind: maker.rows(f"copies {kind}", paths)
               for kind, (paths, _) in images.kinds.items()}  # fmt: skip
    whitening = maker.rows("whitening", others) if others else {}
    about = {
        "view": described(maker.view), "distractors": len(more), "whitened by": len(others),
    }  # fmt: skip
    found: Found = {}
    for each in maker.networks:
        rows = {kind: of[each.name] for kind, of in queries.items()}
        try:
            whiten = Whitening.fit(whitening[each.name]) if others else None
        except DataError as reason:
            found[each.name, LAYER] = Outcome({}, (str(reason),))
            continue
        outcome = _judged(images, rows, database[each.name], whiten, judged.run.device)
        layer = {"layer": "16x16" if each.name == PIXELS else LAYER}
        found[each.name, LAYER] = replace(outcome, details={**outcome.details, **layer, **about})
    return found


def _judged(
    images: Copies, queries: Mapping[str, Tensor], database: Tensor,
    whiten: Whitening | None, device: torch.device,
) -> Outcome:  # fmt: skip
    """Over all copies, and of several kinds also of each."""
    if whiten is not None:
        queries, database = {kind: whiten(of) for kind, of in queries.items()}, whiten(database)
    numbers = {kind: of for kind, (_, of) in images.kinds.items()}
    everything = [number for of in numbers.values() for number in of]
    whole = copy_detection(torch.cat([*queries.values()]), database, everything, device)
    if len(numbers) == 1 or not whole.metrics:
        return whole
    metrics = dict(whole.metrics)
    for kind, of in numbers.items():
        for name, value in copy_detection(queries[kind], database, of, device).metrics.items():
            metrics[f"{kind} {name}"] = value
    return replace(whole, metrics=metrics)


@dataclass(frozen=True)
class _Maker:
    """Makes descriptors of images in files."""

    judged: Judged
    networks: Sequence[Network]
    view: list[dict[str, Any]]

    @classmethod
    def of(cls, judged: Judged) -> _Maker:
        options = judged.EVALUATE.COPIES
        side = options.SIDE
        resized = {"name": "Resize", "size": [side, side], "interpolation": 3}
        trunk = judged_trunk(judged)
        maps = last_map(judged, trunk, side, f"{WHERE}.SIDE")
        whole = "lastCLS" if "lastCLS" in trunk.feature_names else trunk.feature_names[-1]
        made = [each if each.name == PIXELS else _described(each, whole, maps)
                for each in networks_with(judged, [whole, maps])]  # fmt: skip
        return cls(judged, made, judged.before_tensor(resized, all_before=True))

    def rows(self, kind: str, paths: Sequence[Path]) -> dict[str, Tensor]:
        """Make rows by network, in the order of the paths. Collective."""
        listed = self.judged.run.run_dir / f"{kind.replace('/', '_').replace(' ', '_')}_images.npy"
        if is_primary():
            save(listed, np.array([str(each) for each in paths]))
        barrier()
        stored = self.judged.stored_set(
            "disk_filelist", str(listed), self.networks, DATA_LIMIT=-1,
            BATCHSIZE_PER_REPLICA=BATCH, TRANSFORMS=self.view,
        )  # fmt: skip
        if stored.unreadable:
            raise DataError(f"{stored.unreadable} of {len(paths)} images of {kind} cannot be read.")
        return {
            name: store.layer(store.layers[0]).tensor().flatten(1)
            for name, store in stored.stores.items()
        }


def _described(network: Network, whole: str, maps: str) -> Network:
    of_layers: Compute = network.compute

    def compute(images: Any) -> dict[str, Tensor]:
        found = of_layers(images)
        tokens = shape_map(maps, found[maps], WHERE).flatten(2).transpose(1, 2)
        return {LAYER: descriptor(found[whole], tokens)}

    return replace(
        network,
        compute=compute,
        depends_on={**network.depends_on, "descriptor": f"{LAYER} {POWER}"},
    )


def descriptor(whole: Tensor, tokens: Tensor) -> Tensor:
    """whole: of the image; tokens (B, T, D)."""
    return torch.cat([whole.flatten(1), gem(tokens, POWER)], dim=1).float()
