"""`videos` of EVALUATE.PROTOCOLS: do patches find again what the first frame's masks show?

As DINO evaluates DAVIS-2017, in the view of the test images; videos are laid out as DAVIS-2017 is.
Ranks share the videos; features are not kept. Of raw pixels a patch is the mean of its pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.sections import read
from sslengine.contrib.propagation import Propagation, answers, contour, region
from sslengine.contrib.retrieval.on_disk import images_of
from sslengine.data.augment.image import size_of
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.judged_view import described
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import gather_objects
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine.build import build_run_precision
from sslengine.engines.dense import (
    judged_trunk,
    last_map,
    networks_with_maps,
    read_mask,
    resize_mask,
)
from sslengine.engines.features import Network
from sslengine.engines.on_images import Found, Judged
from sslengine.errors import DataError, SSLEngineError
from sslengine.evaluate.outcome import Outcome
from sslengine.monitor.run_facts import PIXELS
from sslengine.precision import Precision
from sslengine.registry import PROTOCOLS

WHERE = "config.EVALUATE.VIDEOS"
LISTED = "ImageSets/2017/val.txt"


@dataclass(frozen=True)
class Video:
    name: str
    frames: Sequence[Path]
    masks: Path  # their folder

    def mask(self, number: int) -> Path:
        """Find the mask of a frame."""
        path = (self.masks / self.frames[number].name).with_suffix(".png")
        if not path.is_file():
            raise DataError(f"there is no mask {path} of the frame {self.frames[number]}.")
        return path


def read_videos(folder: Path) -> list[Video]:
    """Read the videos of the list, in its order."""
    listed = folder / LISTED
    if not listed.is_file():
        raise DataError(
            f"{WHERE}.PATH: there is no list {str(listed)!r}; expected a folder laid out as "
            f"DAVIS-2017: JPEGImages/480p, Annotations/480p, {LISTED}."
        )
    names = [line.strip() for line in listed.read_text().splitlines() if line.strip()]
    found = [_video(folder, name) for name in names]
    if not found:
        raise DataError(f"{WHERE}.PATH: {listed} names no video.")
    return found


def _video(folder: Path, name: str) -> Video:
    frames = images_of(folder / "JPEGImages/480p" / name)
    if len(frames) < 3:
        raise DataError(
            f"{name}: expected 3 frames or more, of which the first and the last do not count; "
            f"got {len(frames)}."
        )
    return Video(name, frames, folder / "Annotations/480p" / name)


log = logging.getLogger("sslengine")

NO_OBJECT = (0, 255)  # the background, and pixels that the annotators left out
# By network: J and F of each object, the means over the frames.
Measured = dict[str, list[tuple[float, float]]]


@PROTOCOLS.register("videos")
def judge_videos(judged: Judged) -> Found:
    """Collective. What one video lacks does not stop the others."""
    options = judged.EVALUATE.VIDEOS
    if not options.PATH:
        raise DataError(f"{WHERE}.PATH names no folder of videos, laid out as DAVIS-2017.")
    videos = read_videos(Path(options.PATH))
    layer = options.LAYER or last_map(judged, judged_trunk(judged), options.SIDE, f"{WHERE}.LAYER")
    carrier = _Carrier.of(judged, layer)
    shared = gather_objects({each.name: carrier.tried(each)
                             for each in videos[rank() :: world_size()]})  # fmt: skip
    measured = {name: found for own in shared for name, found in own.items()}
    notes = [f"{each.name}: {measured[each.name]}" for each in videos
             if isinstance(measured[each.name], str)]  # fmt: skip
    found: Found = {}
    for name in (*(each.name for each in carrier.networks), PIXELS):
        of = {each.name: here[name] for each in videos
              if not isinstance(here := measured[each.name], str)}  # fmt: skip
        details = {"layer": layer, "view": described(carrier.view(options.SIDE)),
                   "long side": f"a multiple of {options.MULTIPLE}"}  # fmt: skip
        found[name, layer] = _outcome(of, notes, details)
    return found


def _outcome(
    videos: Mapping[str, Sequence[tuple[float, float]]], notes: Sequence[str], about: dict[str, Any]
) -> Outcome:
    """Means over the objects of all videos."""
    objects = [each for of in videos.values() for each in of]
    if not objects:
        return Outcome({}, tuple(notes), about)
    j, f = (100 * float(each) for each in np.mean(objects, axis=0))
    each = {name: [float(value) for value in 100 * np.mean(of, axis=0)]
            for name, of in videos.items()}  # fmt: skip
    details = {**about, "objects": len(objects), "videos": each}
    return Outcome({"J&F": (j + f) / 2, "J mean": j, "F mean": f}, tuple(notes), details)


@dataclass(frozen=True)
class _Carrier:
    """Carries masks through videos, by each of the networks."""

    judged: Judged
    networks: Sequence[Network]
    decoder: Decoder
    precision: Precision
    channels: int

    @classmethod
    def of(cls, judged: Judged, layer: str) -> _Carrier:
        run, split = judged.run, judged.test
        decoder = Decoder.build(getattr(read(run.config, DataOptions), split), split)
        networks = networks_with_maps(judged, layer, f"{WHERE}.LAYER")
        (image,) = judged.splits[split].dataset[0, 0]["data"]
        precision = build_run_precision(run.config, run.device)
        return cls(judged, networks, decoder, precision, len(image))

    def view(self, size: Any) -> list[Any]:
        resize = {"name": "Resize", "size": size, "interpolation": 2}
        return self.judged.before_tensor(resize, all_before=True)

    def tried(self, video: Video) -> Measured | str:
        """Or why not."""
        try:
            return self.measured(video)
        except SSLEngineError as reason:
            log.warning("videos: %s: %s", video.name, reason)
            return str(reason)

    def measured(self, video: Video) -> Measured:
        numbers = range(len(video.frames) - 1)  # the last frame does not count
        masks = [read_mask(video.mask(number), WHERE) for number in numbers]
        objects = sorted({*np.unique(masks[0]).tolist()} - {*NO_OBJECT})
        if not objects:
            raise DataError(f"{video.mask(0)} shows no object.")
        size = self._size(video)
        pipeline = Pipeline(self.view([*size]), f"{WHERE}: the view")
        carried: dict[str, Propagation] = {}
        found: dict[str, list[Tensor]] = {}
        for number, wanted in enumerate(masks):
            for name, maps in self._maps(self._image(video, number, pipeline)).items():
                if not number:
                    carried[name] = Propagation(maps, _shares(wanted, objects, maps))
                    continue
                shown = answers(carried[name].next(maps), size).cpu().numpy()
                measures = _measures(shown, wanted, objects, maps.device)
                found.setdefault(name, []).append(measures)
        means = {name: torch.stack(each).mean(dim=0).T for name, each in found.items()}
        return {name: [(j, f) for j, f in each.tolist()] for name, each in means.items()}

    def _size(self, video: Video) -> tuple[int, int]:
        """Height and width of the resized frames."""
        options = self.judged.EVALUATE.VIDEOS
        high, wide = size_of(open_image(video.frames[0], self.decoder))
        ratio = max(high, wide) / min(high, wide)
        several = int(options.SIDE * ratio) // options.MULTIPLE
        long = max(1, several) * options.MULTIPLE
        return (long, options.SIDE) if high > wide else (options.SIDE, long)

    def _image(self, video: Video, number: int, pipeline: Pipeline) -> Tensor:
        image = open_image(video.frames[number], self.decoder)
        sample: dict[str, list[Any]] = {
            "data": [image], "data_valid": [1], "data_idx": [number], "label": [0],
        }  # fmt: skip
        made: Tensor = pipeline(sample)["data"][0]
        if len(made) != self.channels:
            raise DataError(
                f"frames have {len(made)} channels in this view; the judged images {self.channels}."
            )
        return made.float()[None].to(self.judged.run.device)

    @torch.no_grad()
    def _maps(self, images: Tensor) -> dict[str, Tensor]:
        """Compute maps of one image, by network: D x h x w."""
        found = {}
        with self.precision.autocast():
            for each in self.networks:
                (maps,) = self.precision.as_full(each.compute(images)).values()
                found[each.name] = maps[0]
        size = next(iter(found.values())).shape[1:]
        return {**found, PIXELS: F.adaptive_avg_pool2d(images, size)[0]}


def _shares(mask: NDArray[Any], objects: Sequence[int], maps: Tensor) -> Tensor:
    """Return for a map's patches 1 or 0: of the background, then of the objects."""
    small = torch.from_numpy(resize_mask(mask, (maps.shape[2], maps.shape[1]))).to(maps.device)
    each = torch.stack([small == number for number in objects])
    return torch.cat([~each.any(dim=0, keepdim=True), each]).float()


def _measures(
    shown: NDArray[Any], wanted: NDArray[Any], objects: Sequence[int], device: torch.device
) -> Tensor:
    """2 x objects: J and F. shown: the objects' places in the list, from 1 on."""
    full = torch.from_numpy(resize_mask(shown, wanted.shape[::-1])).to(device)
    truth = torch.from_numpy(wanted.astype(np.int32)).to(device)
    found = torch.stack([full == place for place in range(1, len(objects) + 1)])
    truths = torch.stack([truth == number for number in objects])
    return torch.stack([region(found, truths), contour(found, truths)]).cpu()
