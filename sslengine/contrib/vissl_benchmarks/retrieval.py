"""`instance_retrieval_test`: VISSL's benchmark on Oxford, Paris, Copydays and INSTRE.

Descriptors are made of the first layer of FEATURE_EVAL_SETTINGS, of images of any size, and are
kept in a store; config.DATA is not read. `rankings.json` has the images of the database for each
query, the best first; `similarity_scores.json` a line for each image of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.atomic import write_json
from sslengine.config.sections import read
from sslengine.contrib.retrieval.landmarks import landmarks
from sslengine.contrib.retrieval.on_disk import WHERE, Images, read_images, training_images
from sslengine.contrib.retrieval.rmac import most_regions, region_maxima, rmac
from sslengine.contrib.vissl_benchmarks.report import Report
from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import Network, layers_of, save, store_split
from sslengine.engines.options import RetrievalOptions
from sslengine.engines.run import Run
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.retrieval import Whitening, gem, rows_for_cosine
from sslengine.evaluate.store import digest
from sslengine.models.options import ModelOptions
from sslengine.registry import register_engine
from sslengine.trained import identify_weights, load_here

LAYER = "descriptors"
TO_TENSOR = (
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
)
# Options that decide the descriptors.
DECIDE = (
    "FEATS_PROCESSING_TYPE", "SPATIAL_LEVELS", "GEM_POOL_POWER", "NORMALIZE_FEATURES",
    "IMG_SCALINGS",
)  # fmt: skip


@register_engine("instance_retrieval_test")
def instance_retrieval_test(run: Run) -> None:
    """All ranks compute descriptors; rank 0 searches, and the other ranks do not wait."""
    options = read(run.config, RetrievalOptions)
    root = Path(options.DATASET_PATH)
    found = read_images(root, options.EVAL_DATASET_NAME, options.USE_DISTRACTORS)
    images = found.limited(options.most("QUERY"), options.most("DATABASE"))
    model, source = load_here(run.config, run.run_dir, run.device)
    run.describe()
    run.say(f"  weights     {source}")
    maker = _Maker(run, model, options)
    whiten = None
    if options.TRAIN_PCA_WHITENING:
        training = training_images(root, options.TRAIN_DATASET_NAME, options.WHITEN_IMG_LIST)
        whiten = maker.whitening(training[: options.most("TRAINING")])
    boxes = images.boxes if options.CROP_QUERY_ROI else ()
    prepared = _cropped(run, images, options.RESIZE_IMG) if boxes else ()
    queries = maker.descriptors("queries", prepared or images.queries, whiten, bool(prepared))
    database = maker.descriptors("database", images.database, whiten)
    if is_primary():
        _judge(run, images, queries, database)


@dataclass(frozen=True)
class _Maker:
    """Makes descriptors of images, in stores. Collective."""

    run: Run
    model: nn.Module
    options: RetrievalOptions

    def whitening(self, paths: Sequence[Path]) -> Whitening:
        of_regions = self.options.FEATS_PROCESSING_TYPE == "rmac"
        compute = self._regions if of_regions else partial(self._pooled, whiten=None)
        rows = self._stored("training", paths, compute, {}).flatten(0, -2)
        rows = rows[~rows.isnan().any(dim=1)]  # padding, where an image has few regions
        count = self.options.N_PCA
        return Whitening.fit(rows, None if count < 0 else count)

    def descriptors(
        self, kind: str, paths: Sequence[Path], whiten: Whitening | None, prepared: bool = False
    ) -> Tensor:
        """prepared: the images have their final size."""
        compute = partial(self._pooled, whiten=whiten)
        depends_on = {"whitening": _hash_of(whiten), "prepared": prepared}
        return self._stored(kind, paths, compute, depends_on)

    def _stored(
        self, kind: str, paths: Sequence[Path], make: Callable[[Any], Tensor],
        more: Mapping[str, Any],
    ) -> Tensor:  # fmt: skip
        run, options = self.run, self.options
        listed = run.run_dir / f"{kind}_images.npy"
        if is_primary():
            save(listed, np.array([str(each) for each in paths]))
        barrier()
        sizes = () if more.get("prepared") else _sizes(options)
        data = read(run.config, DataOptions)
        data.TEST = SplitOptions(
            DATA_SOURCES=["disk_filelist"], DATA_PATHS=[str(listed)], LABEL_TYPE="sample_index",
            BATCHSIZE_PER_REPLICA=1, TRANSFORMS=[*sizes, *TO_TENSOR],
            TRANSPARENT=data.TEST.TRANSPARENT,
        )  # fmt: skip
        depends_on = {
            **identify_weights(self.model, read(run.config, ModelOptions)), **more, "kind": kind,
            "how": {key: getattr(options, key) for key in DECIDE},
        }  # fmt: skip
        folder = Path(options.FEATURE_EXTRACTION_DIR or run.run_dir / "features")
        network = Network("trained", lambda images: {LAYER: make(images)}, depends_on)
        run.say(f"{kind}: {len(paths)} images")
        found = store_split(run, "TEST", [network], folder, data=data)
        store = found.stores["trained"]
        if len(store.indices) < len(paths):
            lost = len(paths) - len(store.indices)
            raise DataError(f"{lost} of {len(paths)} images of {kind} cannot be read.")
        return store.layer(LAYER).tensor()

    def _maps(self, images: Tensor) -> list[Tensor]:
        """Compute the first layer, for each scale."""
        scaled = [
            images if scale == 1 else F.interpolate(images, scale_factor=scale, mode="bilinear")
            for scale in self.options.IMG_SCALINGS
        ]
        return [next(iter(layers_of(self.model)(each).values())).float() for each in scaled]

    def _regions(self, images: Tensor) -> Tensor:
        """Padded by NaN to one number of regions."""
        options = self.options
        found = region_maxima(
            _expect_maps(self._maps(images)[0]), options.SPATIAL_LEVELS, options.NORMALIZE_FEATURES
        )
        missing = most_regions(options.SPATIAL_LEVELS) - found.shape[1]
        return F.pad(found, (0, 0, 0, missing), value=torch.nan)

    def _pooled(self, images: Tensor, whiten: Whitening | None) -> Tensor:
        options, maps = self.options, self._maps(images)
        unit = options.NORMALIZE_FEATURES
        if options.FEATS_PROCESSING_TYPE == "rmac":
            assert whiten is not None
            return rmac(_expect_maps(maps[0]), options.SPATIAL_LEVELS, whiten, unit)
        if options.FEATS_PROCESSING_TYPE == "gem":
            tokens = [_expect_maps(each).flatten(2).transpose(1, 2) for each in maps]
            rows = [gem(each, options.GEM_POOL_POWER) for each in tokens]
            # As VISSL: a constant next to the pooled values.
            rows = [torch.cat([each, each.new_ones(len(each), 1)], dim=1) for each in rows]
        else:
            rows = [each.flatten(1) for each in maps]
        if len({each.shape[1] for each in rows}) > 1:
            raise DataError(f"{WHERE}.IMG_SCALINGS: maps of several sizes need gem. {_TO_ONE_SIZE}")
        pooled = torch.stack(rows).mean(dim=0)
        pooled = F.normalize(pooled) if unit else pooled
        return whiten(pooled) if whiten else pooled


_TO_ONE_SIZE = f"Set {WHERE}.FEATS_PROCESSING_TYPE, or a pooling in FEATURE_EVAL_SETTINGS."


def _expect_maps(maps: Tensor) -> Tensor:
    if maps.ndim != 4:
        raise ConfigError(
            f"{WHERE}.FEATS_PROCESSING_TYPE: expected a feature map, N x C x H x W, and the layer "
            f"has the shape {tuple(maps.shape)}. In MODEL.FEATURE_EVAL_SETTINGS set "
            f"SHOULD_FLATTEN_FEATS to false, and LINEAR_EVAL_FEAT_POOL_OPS_MAP to a layer with "
            f"[Identity, []]."
        )
    return maps


def _hash_of(whiten: Whitening | None) -> str:
    return digest(whiten.mean.numpy(), whiten.projection.numpy()) if whiten else ""


def _sizes(options: RetrievalOptions) -> list[dict[str, Any]]:
    side = options.RESIZE_IMG
    if side == -1:
        return []
    if options.CENTER_CROP or options.EVAL_DATASET_NAME == "instre":
        return [{"name": "Resize", "size": 256 * side // 224}, {"name": "CenterCrop", "size": side}]
    return [{"name": "ImgPilResizeLargerSide", "size": side}]


def _cropped(run: Run, images: Images, side: int) -> list[Path]:
    """Queries at the size that they have as whole images, cropped to their boxes. Collective."""
    folder = run.run_dir / "queries"
    paths = [folder / f"{number:05d}.png" for number in range(len(images.queries))]
    if is_primary():
        folder.mkdir(exist_ok=True)
        transparent = read(run.config, DataOptions).TEST.TRANSPARENT
        decoder = Decoder.build(SplitOptions(TRANSPARENT=transparent), "TEST")
        for path, source, box in zip(paths, images.queries, images.boxes, strict=True):
            image = open_image(source, decoder)
            factor = 1.0 if side == -1 else side / max(image.size)
            width, height = (max(1, round(each * factor)) for each in image.size)
            left, top, right, bottom = (round(each * factor) for each in box)
            whole = image.resize((width, height), Image.Resampling.BILINEAR)
            whole.crop((max(left, 0), max(top, 0), min(right, width), min(bottom, height))).save(
                path
            )
    barrier()
    return paths


def _judge(run: Run, images: Images, queries: Tensor, database: Tensor) -> None:
    options = read(run.config, RetrievalOptions)
    rows = queries.flatten(1).double(), database.flatten(1).double()
    if rows[0].shape[1] != rows[1].shape[1]:
        raise DataError(
            f"descriptors of images of several sizes have no common width. {_TO_ONE_SIZE}"
        )
    by_distance = options.SIMILARITY_MEASURE == "l2"
    sets = rows_for_cosine(*rows) if by_distance else rows
    report = Report(run, "instance_retrieval_test")
    for kind, numbers in (images.kinds or {"": range(len(rows[0]))}).items():
        of_kind = list(numbers)
        truth = [images.truth[each] for each in of_kind]
        found = landmarks(sets[0][of_kind], sets[1], truth, images.levels)
        report.add(kind or options.EVAL_DATASET_NAME, _named(found, len(images.levels)))
    if options.SAVE_RETRIEVAL_RANKINGS_SCORES:
        scores = (
            -torch.cdist(*rows) if by_distance else F.normalize(rows[0]) @ F.normalize(rows[1]).T
        )
        ranked = scores.argsort(dim=1, descending=True, stable=True)
        write_json(run.run_dir / "rankings.json", ranked.tolist())
        write_json(run.run_dir / "similarity_scores.json", scores.T.tolist())
    report.end()


def _named(found: Outcome, levels: int) -> Outcome:
    if levels > 1:
        return found
    return replace(found, metrics={k.removeprefix("easy "): v for k, v in found.metrics.items()})
