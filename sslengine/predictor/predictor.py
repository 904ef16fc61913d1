"""`Predictor(run_folder)(image)`: apply a run's newest checkpoint to an image."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from sslengine import catalog  # noqa: F401 - declares the names that a config has
from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.checkpoint.manifest import sha256_of
from sslengine.config.options import RunOptions
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.config.users_code import hash_of_users_code
from sslengine.data.augment.transform import MakesLabel
from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.feed import DataFeed
from sslengine.data.judged_view import judged_train
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.ranks import pick_device
from sslengine.engine.build import build_base_model, build_run_precision
from sslengine.engine.trained import load_network, newest_state, state_of, trunk_of
from sslengine.engines.features import Features, extract, join
from sslengine.errors import ConfigError, readable
from sslengine.losses.options import LossOptions
from sslengine.methods import supervised
from sslengine.models.options import ModelOptions
from sslengine.models.weights import AUTO
from sslengine.models.weights.load import expect_whole, init_from_file
from sslengine.predictor import bands
from sslengine.predictor.index import Index, key_of, load_or_make, unit_length
from sslengine.predictor.view import View
from sslengine.registry import LOSSES, TRANSFORMS
from sslengine.trust import closed

log = logging.getLogger("sslengine")

# Losses whose outputs are one number per class.
ONE_CLASS = (nn.CrossEntropyLoss, supervised.CrossEntropyLoss)
MANY_CLASSES = (nn.BCEWithLogitsLoss, supervised.BinaryCrossEntropyLoss)


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


P = ParamSpec("P")
R = TypeVar("R")


def _untrusting(
    method: Callable[Concatenate[Predictor, P], R],
) -> Callable[Concatenate[Predictor, P], R]:
    """Close the trust switch during the method, unless the run's config is trusted."""

    @wraps(method)
    def guarded(self: Predictor, /, *arguments: P.args, **named: P.kwargs) -> R:
        with closed(self.resolved.opened):
            return method(self, *arguments, **named)

    return guarded


class Predictor:
    """Loads the model now, and the index of the training set with the first image.

    overrides: as on the command line, `config.DATA.TRAIN.DATA_PATHS=[/their/path/here]`.
    trust_config: allow the run's config.yaml to name Python code to import, and to refer to
    other files and the environment. Otherwise these are refused, or not read.
    network: `student` or `teacher` of a method that has both; auto: the method chooses.
    """

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
        self.run_folder, self.count = Path(run_folder), nearest
        own = bands.of_run(self.run_folder, trust_config, overrides)
        overrides = [*own, *overrides]
        self.resolved = open_run(self.run_folder, overrides, trusted=trust_config, judged=True)
        self.config = self.resolved.config
        for warning in self.resolved.warnings:
            log.warning("%s", warning)
        self.device = pick_device(device)
        self._build(network)

    @_untrusting
    def _build(self, network: str) -> None:
        if self.count:
            expect_no_links_out(self.run_folder)  # the index is kept there
        trained = self.resolved.engine_name == "train"
        newest = newest_state(self.run_folder) if trained else None
        self.model = build_base_model(self.config, self.device)
        self.trunk = trunk_of(self.model)
        self._wanted = network
        self._load(*newest) if newest else self._load_file()
        self.seed = read(self.config, RunOptions).SEED_VALUE
        data = read(self.config, DataOptions)
        self.view = View(data, self.seed)
        self.decoder = Decoder.build(data.TRAIN, "TRAIN")
        self.bands = bands.Bands(self.trunk.in_chans, self.view.entries, data.TRAIN)
        self.precision = build_run_precision(self.config, self.device)
        self._scores = _scores_of(self.config)

    @_untrusting
    def use(self, checkpoint: Path) -> None:
        """Another checkpoint of the run than its newest."""
        self._load(checkpoint, state_of(checkpoint))

    def _load(self, checkpoint: Path, state: Mapping[str, Any]) -> None:
        self.checkpoint = checkpoint
        self.network = load_network(self.model, state, self._wanted, checkpoint)
        # Class number -> name; empty if labels are numbers.
        self.class_names = [*(state.get("classes") or [[]])[0]]
        self.model.eval()
        vars(self).pop("index", None)  # of the features of another checkpoint

    def _load_file(self) -> None:
        """The weights of a network that no run here has trained."""
        options = read(self.config, ModelOptions)
        loaded = init_from_file(self.model, options)
        expect_whole(loaded)
        self.checkpoint, self.network = Path(options.WEIGHTS_INIT.PARAMS_FILE), loaded.network
        self.class_names = []
        self.model.eval()

    def __call__(self, image: str | Path | Image.Image | NDArray[np.generic]) -> Prediction:
        """image: an array (height x width x channels) only for a run with IMAGE_MODE stored."""
        return self.predict(self.read(image))

    @_untrusting
    def read(self, image: str | Path | Image.Image | NDArray[np.generic]) -> Any:
        """The image, decoded; raises if that cannot be done, or if it has other bands."""
        if isinstance(image, (str, Path)):
            opened, name = self.open(image), str(image)
        else:
            opened, name = self.decoder.given(image), "the image"
        self.bands.expect(opened, name)
        return opened

    @_untrusting
    @torch.no_grad()
    def predict(self, decoded: Any) -> Prediction:
        """decoded: what `read` returns."""
        batch = self.view(decoded)[None].to(self.device)
        features = self.trunk_features(batch)["trunk"][0].cpu()
        classes = None
        if self._scores is not None:
            with self.precision.autocast():
                outputs = self.precision.as_full(self.model(batch))
            classes = self._scores(outputs[0][0]).cpu()
        return Prediction(features, classes, self._nearest(features))

    def open(self, path: str | Path) -> Image.Image:
        """Decode as for training: with IMAGE_MODE stored the result may be an array."""
        return open_image(Path(path), self.decoder)

    def _nearest(self, features: Tensor) -> list[Neighbour]:
        if self.count < 1:
            return []
        similar, numbers = self.index.nearest(features, self.count)
        labels, classes = self.index.labels, self._training_classes()
        return [
            Neighbour(
                number, self.training_path(number), similarity,
                None if labels is None else _classes_of(labels[number], classes),
            )
            for similarity, number in zip(similar, numbers, strict=True)
        ]  # fmt: skip

    def _training_classes(self) -> list[Any]:
        """What the run calls those of the training images: they may have others by now."""
        names = self.dataset.classes[0].names if self.class_names and self.dataset.classes else ()
        numbers: dict[str, Any] = {name: number for number, name in enumerate(self.class_names)}
        return [numbers.get(name, name) for name in names]

    @torch.no_grad()
    def trunk_features(self, batch: Tensor, layer: str = "") -> dict[str, Tensor]:
        """The final feature as a vector; of another layer images x tokens x width."""
        if getattr(self.model, "flip_channels", False):
            batch = batch.flip(1)
        with self.precision.autocast():
            (found,) = self.trunk(batch, [layer] if layer else [])
        return {"trunk": self.precision.as_full(found).flatten(2 if layer else 1)}

    # ---- the training set

    @cached_property
    @_untrusting
    def data(self) -> DataOptions:
        """The options of DATA for single training images, transformed as queries are."""
        data = read(self.config, DataOptions)
        data.TRAIN = judged_train(data)
        return data

    @cached_property
    @_untrusting
    def dataset(self) -> SSLDataset:
        return SSLDataset(self.data.TRAIN, "TRAIN", self.seed, hold_out=self.data.HOLD_OUT)

    def training_path(self, index: int) -> str:
        return self.dataset.sources[0].path(int(self.dataset.rows[index]))

    @_untrusting
    def training_image(self, index: int) -> Image.Image:
        return self.dataset.sources[0].image(int(self.dataset.rows[index]))

    @cached_property
    @_untrusting
    def index(self) -> Index:
        transforms = [dict(entry) for entry in self.view.entries]
        weights = f"{self.network} of {sha256_of(self.checkpoint)}, {self.decoder}"
        code = hash_of_users_code(self.config).values()
        key = key_of(" ".join([weights, *code]), transforms, self.dataset)
        return load_or_make(self.run_folder / "predictor" / "index.torch", key, self._make_index)

    def feed(self, train: SplitOptions, training: bool = False) -> DataFeed:
        """training: as the loader of a run; otherwise each image once, in order."""
        return DataFeed(
            dataclasses.replace(self.data, TRAIN=train), "TRAIN", training=training, seed=self.seed,
            device=self.device, mp_method=read(self.config, RunOptions).MULTI_PROCESSING_METHOD,
        )  # fmt: skip

    def read_all(
        self, train: SplitOptions | None = None, layer: str = "", then: str = ""
    ) -> Features:
        """The features, labels and numbers of all training images that can be read.

        train: other options than those of `data`. layer: see trunk_features. then: the stage that
        follows.
        """
        train = dataclasses.replace(
            train or self.data.TRAIN, INPUT_KEY_NAMES=["data"], TARGET_KEY_NAMES=["label"]
        )
        feed = self.feed(train)
        parts: list[Features] = []
        try:
            with closed(self.resolved.opened):
                compute = partial(self.trunk_features, layer=layer)
                parts.extend(extract(compute, feed, train, self.precision, then))
            return join(parts)
        except Exception:
            self._expect_fitting(feed, len(parts))
            raise
        finally:
            feed.close()

    @_untrusting
    def _expect_fitting(self, feed: DataFeed, done: int) -> None:
        """Raise if that is why batches behind the first `done` failed: the next, or one ahead.

        An image that is refused is left out, so it is the reason only where all of them are.
        """
        source, rows = feed.dataset.sources[0], feed.dataset.rows
        first, end = (sum(feed.batch_sizes[:count]) for count in (done, done + 2))
        refused: list[str] = []
        for row in map(int, rows[first:end]):
            try:
                image = source.image(row)
            except ConfigError as error:
                refused.append(f"{readable(source.path(row))}: {error}")
            except Exception:  # as many kinds as there are decoders; it is left out
                continue
            else:
                self.bands.expect(image, source.path(row))
        if refused and len(refused) == len(rows[first:end]):
            raise ConfigError(refused[0])

    def _make_index(self) -> Index:
        found = self.read_all(then="the nearest training images")
        labelled = self.data.TRAIN.LABEL_TYPE == "standard"
        labels = found.targets
        by_number = labels.new_zeros((len(self.dataset), *labels.shape[1:]))
        by_number[found.indices] = labels
        features = unit_length(found.layers["trunk"])
        return Index(features, by_number if labelled else None, found.indices)


def _classes_of(label: Tensor, called: Sequence[Any]) -> Any:
    """Of a row of indicators the classes that are shown; of probabilities these."""
    if label.is_floating_point():
        return label.tolist()
    if label.ndim == 0:
        return _called(int(label), called)
    return [_called(number, called) for number in (label > 0).nonzero().flatten().tolist()]


def _called(number: int, called: Sequence[Any]) -> Any:
    return called[number] if 0 <= number < len(called) else number


def _scores_of(config: Any) -> Callable[[Tensor], Tensor] | None:
    """A function: model's output -> class probabilities; None if the run trained no classifier.

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
