"""What label-free metrics are computed from: features of the same images by each checkpoint.

Features are those of the judged view. The augmented views are drawn from the run's own TRANSFORMS,
as in successive epochs, the same ones for every checkpoint; of crops of several sizes the largest.

They are kept in the run's folder `features`, as those of `sslengine judge`: nothing is computed
twice, also after a kill. Of a run that may not be written to they are in a temporary folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.config.sections import read
from sslengine.config.users_code import hash_of_users_code
from sslengine.data.fingerprint import hash_here
from sslengine.data.options import DataOptions, PowerLawSampler, SplitOptions, StratifiedSampler
from sslengine.errors import CheckpointError, DataError, SSLEngineError
from sslengine.evaluate.label_free.metric import Inputs
from sslengine.evaluate.store import Kept, short_name
from sslengine.models.model import Model
from sslengine.predictor.predictor import Predictor
from sslengine.progress import progress
from sslengine.trust import closed

log = logging.getLogger("sslengine")

# LiDAR's number of images: the paper has 1,000 with 50 views of each.
VIEWED_IMAGES, VIEWED_BATCH = 500, 16
VIEWED = ("views", "projections")
FIRST = "it is the first checkpoint of its run"


@dataclass(frozen=True)
class Read:
    checkpoint: Path
    network: str
    inputs: Inputs
    labels: Tensor | None  # a class number for each image


def read_checkpoints(
    predictor: Predictor, checkpoints: Sequence[Path], rows: int, views: int
) -> Iterator[Read]:
    """rows: at most so many images; views: of each of VIEWED_IMAGES images, 0 for none."""
    train = _options(predictor, rows)
    previous = None
    with closed(predictor.resolved.opened):
        expect_no_links_out(predictor.run_folder)  # features are kept there
    with predictor.open_features() as folder:
        for checkpoint in checkpoints:
            try:
                predictor.use(checkpoint)
            except CheckpointError as error:
                log.warning("left out: %s", error)
                continue
            with closed(predictor.resolved.opened):
                store = predictor.store(train, folder)
            features = store.layer("trunk")[:]
            viewed, missing = _viewed(predictor, views, folder)
            missing |= {} if previous is not None else {"previous": FIRST}
            labels = store.targets if train.LABEL_TYPE == "standard" else None
            inputs = Inputs(features, previous, missing=missing, **viewed)
            yield Read(checkpoint, predictor.network, inputs, labels)
            previous = features


def _options(predictor: Predictor, rows: int) -> SplitOptions:
    """Choose a part of the images, with their classes where the source knows them."""
    train = predictor.data.TRAIN
    if len(predictor.dataset) > rows:
        train = _limited(train, rows)
    if train.LABEL_TYPE != "standard" and predictor.dataset.sources[0].num_classes > 1:
        train = replace(train, LABEL_SOURCES=train.DATA_SOURCES, LABEL_TYPE="standard")
    return train


def _limited(train: SplitOptions, rows: int) -> SplitOptions:
    sampling = type(train.DATA_LIMIT_SAMPLING)()  # a run's own may need labels
    return replace(train, DATA_LIMIT=rows, DATA_LIMIT_SAMPLING=sampling)


def _viewed(
    predictor: Predictor, count: int, folder: Path
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return `views` and `projections`, or why there are none."""
    if not count:
        return {}, dict.fromkeys(VIEWED, "no views were asked for")
    try:
        with closed(predictor.resolved.opened):
            given = _kept_outputs(predictor, count, folder)
    except SSLEngineError as error:
        return {}, dict.fromkeys(VIEWED, str(error))
    return given, {name: "the model has no projection head" for name in VIEWED if name not in given}


def _kept_outputs(predictor: Predictor, count: int, folder: Path) -> dict[str, Tensor]:
    train = predictor.data.TRAIN
    if len(predictor.dataset) > VIEWED_IMAGES:
        train = _limited(train, VIEWED_IMAGES)
    options = replace(
        train,
        TRANSFORMS=read(predictor.config, DataOptions).TRAIN.TRANSFORMS,
        COLLATE_FUNCTION="identity_collator",
        BATCHSIZE_PER_REPLICA=VIEWED_BATCH,
        DROP_LAST=False,
        LABEL_TYPE="sample_index",
        USE_DEBUGGING_SAMPLER=True,  # the order of the images
        STRATIFIED_SAMPLER=StratifiedSampler(),
        POWER_LAW_SAMPLER=PowerLawSampler(),
    )
    depends_on = short_name({
        **predictor.depends_on, "count": count, "view": asdict(options), "seed": predictor.seed,
        "precision": predictor.precision.name, "images": hash_here(predictor.dataset),
        **hash_of_users_code(predictor.config),
    })  # fmt: skip
    kept, name = Kept(folder, depends_on), f"views-{depends_on}"
    found = kept.get(name) or kept.put(name, _outputs(predictor, options, count))
    return {name: torch.from_numpy(rows) for name, rows in found.items()}


@torch.no_grad()
def _outputs(predictor: Predictor, options: SplitOptions, count: int) -> dict[str, Any]:
    """Compute the trunk's features and the head's outputs of `count` views of each image."""
    found: dict[str, dict[int, list[Tensor]]] = {}  # by name and image
    # A loader for tests draws the same views in every epoch.
    feed = predictor.feed(options, training=True)
    try:
        epoch = 0
        name, total = predictor.checkpoint.name, count * len(feed.dataset)
        with progress(f"augmented views by {name}", total, "views", f"metrics of {name}") as step:
            while not found or any(len(each) < count for each in found[VIEWED[0]].values()):
                for numbers, views in map(_views_of, feed.batches(epoch)):
                    images = views.to(predictor.device)
                    outputs = [predictor.trunk_features(images)["trunk"]]
                    outputs += _projected(predictor, images)
                    for of, rows in zip(VIEWED, outputs):
                        for number, row in zip(numbers, rows.cpu(), strict=True):
                            if number >= 0:  # the placeholder for unreadable images has -1
                                found.setdefault(of, {}).setdefault(number, []).append(row)
                    step(len(numbers))
                epoch += 1
    finally:
        feed.close()
    return {
        of: torch.stack([torch.stack(rows[number][:count]) for number in sorted(rows)]).numpy()
        for of, rows in found.items()
    }


def _views_of(samples: Any) -> tuple[list[int], Tensor]:
    """Return the images' numbers, one for each view, and the views of the largest size."""
    numbers: list[int] = []
    found: list[Tensor] = []
    for sample in samples:
        views = [each for each in sample["data"] if isinstance(each, Tensor) and each.ndim == 3]
        if len(views) < len(sample["data"]):
            raise DataError("config.DATA.TRAIN.TRANSFORMS give something else than single images")
        side = max(each.shape[-1] for each in views)
        large = [each for each in views if each.shape[-1] == side]
        numbers += [int(sample["data_idx"][0])] * len(large)
        found += large
    if len({each.shape for each in found}) > 1:
        raise DataError("config.DATA.TRAIN.TRANSFORMS give images of different sizes")
    return numbers, torch.stack(found)


def _projected(predictor: Predictor, images: Tensor) -> list[Tensor]:
    """Return the output of the model's first head; nothing without one, or if it returns maps."""
    model = predictor.model
    routes = [each for each in model.routes if each.heads] if isinstance(model, Model) else []
    if not routes:
        return []
    key = routes[0].key
    with predictor.precision.autocast():
        output = predictor.precision.as_full(model({key: images} if key else images))
    while not isinstance(output, Tensor):  # a head may return embeddings and scores
        output = output[0]
    return [] if output.shape[2:].numel() > 1 else [output.flatten(1)]
