"""Ask a trained network about images: `Predictor(run_folder)(image)`.

The features of all training images are computed once and kept in the run's folder `features`, as
those of `sslengine judge`; if the checkpoint, the transforms, the images or their labels change,
they are computed again. They take four bytes per number: 8 GB for a million images of 2048
dimensions.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine import catalog  # noqa: F401 - declares the names that a config has
from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.augment.transform import MakesLabel
from sslengine.data.feed import DataFeed
from sslengine.data.judged_view import judged_train
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.ranks import pick_device
from sslengine.engines.features import Features, Network, extract, join, store_split
from sslengine.engines.run import Run
from sslengine.evaluate.store import Store
from sslengine.losses.options import LossOptions
from sslengine.methods import supervised
from sslengine.models.weights import AUTO
from sslengine.monitor.console import Screen
from sslengine.registry import LOSSES, TRANSFORMS
from sslengine.trained import Trained, find_trained, untrusting
from sslengine.trust import closed

log = logging.getLogger("sslengine")

# Losses whose outputs are one number per class.
ONE_CLASS = (nn.CrossEntropyLoss, supervised.CrossEntropyLoss)
MANY_CLASSES = (nn.BCEWithLogitsLoss, supervised.BinaryCrossEntropyLoss)
PIECE = 2**16  # training images compared at once


@dataclass(frozen=True)
class Neighbour:
    index: int  # in the training set
    path: str  # its file, or its name in the source
    similarity: float  # cosine of the features
    # A class number; of several classes a list of them. Of a class that the run lacks its name.
    label: Any = None


@dataclass(frozen=True)
class Prediction:
    features: Tensor = field(repr=False)  # of the trunk, as a vector
    classes: Tensor | None  # probability of each class, if the run trained a classifier
    nearest: list[Neighbour]


class Predictor(Trained):
    """Loads the model now, and the index of the training set with the first image.

    overrides: as on the command line, `config.DATA.TRAIN.DATA_PATHS=[/their/path/here]`.
    trust_config: allow the run's config.yaml to name Python code to import, and to refer to
    other files and the environment. Otherwise these are refused, or not read.
    network: `student` or `teacher` of a method that has both; auto: the method chooses.
    """

    run_folder: Path

    def __init__(
        self,
        run_folder: str | Path,
        *,
        nearest: int = 5,
        device: str = "auto",
        overrides: Sequence[str] = (),
        trust_config: bool = False,
        network: str = AUTO,
    ) -> None:
        resolved, folder, checkpoint = find_trained(Path(run_folder), overrides, trust_config)
        if nearest and folder:
            with closed(resolved.opened):
                expect_no_links_out(folder)  # the index is kept there
        super().__init__(resolved, folder, checkpoint, network, pick_device(device))
        self.count = nearest
        self._prepare()

    @untrusting
    def _prepare(self) -> None:
        """Build what may be refused, before the first image."""
        self.view  # noqa: B018 - it is kept
        self._scores = _choose_scores(self.config)

    @untrusting
    def use(self, checkpoint: Path) -> None:
        """Load the weights of another checkpoint of the run."""
        super().use(checkpoint)
        vars(self).pop("index", None)  # of the features of another checkpoint

    def __call__(self, image: str | Path | Image.Image | NDArray[np.generic]) -> Prediction:
        """Predict of one image. image: an array is height x width, or height x width x channels."""
        return self.predict(self.read(image))

    @untrusting
    def read(self, image: str | Path | Image.Image | NDArray[np.generic]) -> Any:
        """Decode the image; raise if that cannot be done, or if it has other bands."""
        return self.view.decode(image)

    @untrusting
    @torch.no_grad()
    def predict(self, decoded: Any) -> Prediction:
        """Predict of what `read` returns."""
        batch = self.view(decoded)[None].to(self.device)
        features = self.trunk_features(batch)["trunk"][0].cpu()
        classes = None
        if self._scores is not None:
            with self.precision.autocast():
                outputs = self.precision.as_full(self.model(batch))
            classes = self._scores(outputs[0][0]).cpu()
        return Prediction(features, classes, self._nearest(features))

    def _nearest(self, features: Tensor) -> list[Neighbour]:
        if self.count < 1:
            return []
        similar, numbers = self.index.nearest(features, self.count)
        labels, classes = self.index.labels, self._training_classes()
        return [
            Neighbour(
                number, self.training_path(number), similarity,
                None if labels is None else _name_classes(labels[number], classes),
            )
            for similarity, number in zip(similar, numbers, strict=True)
        ]  # fmt: skip

    def _training_classes(self) -> list[Any]:
        """List what the run calls the training images' classes: they may have others by now."""
        names = self.dataset.classes[0].names if self.class_names and self.dataset.classes else ()
        numbers: dict[str, Any] = {name: number for number, name in enumerate(self.class_names)}
        return [numbers.get(name, name) for name in names]

    # ---- the training set

    @cached_property
    @untrusting
    def data(self) -> DataOptions:
        """DATA for single training images, transformed as queries are."""
        data = read(self.config, DataOptions)
        data.TRAIN = judged_train(data)
        return data

    @cached_property
    @untrusting
    def dataset(self) -> SSLDataset:
        return SSLDataset(self.data.TRAIN, "TRAIN", self.seed, hold_out=self.data.HOLD_OUT)

    def training_path(self, index: int) -> str:
        return self.dataset.sources[0].path(int(self.dataset.rows[index]))

    @untrusting
    def training_image(self, index: int) -> Image.Image:
        return self.dataset.sources[0].image(int(self.dataset.rows[index]))

    @cached_property
    @untrusting
    def index(self) -> FeatureIndex:
        with self.open_features() as folder:
            store = self.store(self.data.TRAIN, folder, then="the nearest training images")
            features = F.normalize(store.layer("trunk")[:].flatten(1).float())
            labels, numbers = store.targets, store.indices
        by_number = labels.new_zeros((len(self.dataset), *labels.shape[1:]))
        by_number[numbers] = labels
        labelled = self.data.TRAIN.LABEL_TYPE == "standard"
        return FeatureIndex(features, by_number if labelled else None, numbers)

    @contextmanager
    def open_features(self) -> Iterator[Path]:
        """Give the folder of the run's features; of a run that may not be written to another."""
        if os.access(self.run_folder, os.W_OK):
            yield self.run_folder / "features"
        else:
            with tempfile.TemporaryDirectory() as other:
                yield Path(other)

    def store(self, train: SplitOptions, folder: Path, then: str = "") -> Store:
        """Compute the features of training images that the folder lacks. then: what follows."""
        run = Run(self.resolved, self.run_folder, self.device, Screen(quiet=True))
        network = Network(self.checkpoint.name, self.trunk_features, self.depends_on)
        data = dataclasses.replace(self.data, TRAIN=train)
        return store_split(run, "TRAIN", [network], folder, data=data, then=then).stores[
            network.name
        ]

    def feed(self, train: SplitOptions, training: bool = False) -> DataFeed:
        """Load training images: as a run does if `training`, or each once, in order."""
        return DataFeed(
            dataclasses.replace(self.data, TRAIN=train), "TRAIN", training=training, seed=self.seed,
            device=self.device, mp_method=read(self.config, RunOptions).MULTI_PROCESSING_METHOD,
        )  # fmt: skip

    def read_all(self, layer: str = "") -> Features:
        """Compute the features of all training images that can be read; return labels and numbers.

        layer: see trunk_features.
        """
        train = self.data.TRAIN
        feed = self.feed(train)
        try:
            with closed(self.resolved.opened):
                compute = partial(self.trunk_features, layer=layer)
                return join([*extract(compute, feed, train, self.precision)])
        finally:
            feed.close()


def _name_classes(label: Tensor, names: Sequence[Any]) -> Any:
    """Name the class of a number, the classes that indicators show; return probabilities."""
    if label.is_floating_point():
        return label.tolist()
    if label.ndim == 0:
        return _name_class(int(label), names)
    return [_name_class(number, names) for number in (label > 0).nonzero().flatten().tolist()]


def _name_class(number: int, names: Sequence[Any]) -> Any:
    return names[number] if 0 <= number < len(names) else number


def _choose_scores(config: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what makes class probabilities of the model's output; None if it is no classifier.

    Labels must belong to the images: the labels of a rotation task, for example, do not.
    """
    train = read(config, DataOptions).TRAIN
    makers = (TRANSFORMS.get(entry["name"]) for entry in train.TRANSFORMS)
    makes_label = any(isinstance(each, type) and issubclass(each, MakesLabel) for each in makers)
    name = read(config, LossOptions).name
    if not name or not train.LABEL_SOURCES or train.LABEL_TYPE != "standard" or makes_label:
        return None
    loss = LOSSES.get(name, "config.LOSS.name")
    if not isinstance(loss, type):
        return None
    if issubclass(loss, ONE_CLASS):
        return lambda logits: logits.float().softmax(dim=0)
    return (lambda logits: logits.float().sigmoid()) if issubclass(loss, MANY_CLASSES) else None


# ---- the features of training images


@dataclass(frozen=True)
class FeatureIndex:
    features: Tensor  # images x dimensions, of unit length
    labels: Tensor | None  # indexed by image number
    numbers: Tensor  # image number of each row; images that could not be read have no row

    def nearest(self, query: Tensor, count: int) -> tuple[list[float], list[int]]:
        """Find the most similar first: cosine similarities, and image numbers."""
        unit = F.normalize(query.float().flatten(), dim=0)
        pieces = [piece @ unit for piece in self.features.split(PIECE)]
        found = torch.cat(pieces).topk(min(count, len(self.features)))
        return found.values.tolist(), self.numbers[found.indices].tolist()
