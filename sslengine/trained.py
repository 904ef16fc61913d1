"""Open a trained network: of a run, of one of its checkpoints, or of a file of weights.

    trained = Trained(*find_trained(Path("runs/birds")), network="teacher")
    batch = trained.view(trained.view.decode("bird.png"))[None]
    features = trained.trunk_features(batch)["trunk"]

Code that a config without trust names is refused, when the network is opened and when it is used.
An engine, which has its own config and folder, takes `load_here`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from PIL import Image
from torch import Tensor, nn

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import verify
from sslengine.checkpoint.resume import newest_path
from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved, resolve
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read, replaced
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import Sample
from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.judged_view import choose
from sslengine.data.options import DataOptions
from sslengine.data.pixel_format import MODE_CHANNELS, count_channels
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.engine.build import build_base_model, build_loss, build_run_precision
from sslengine.engine.channels import input_channels
from sslengine.engine.passes import trunk_of
from sslengine.errors import CheckpointError, ConfigError, MissingCheckpointError, readable
from sslengine.models.frozen import digest
from sslengine.models.options import ModelOptions, WeightsInitOptions
from sslengine.models.weights import AUTO, STUDENT
from sslengine.models.weights.load import (
    Loaded,
    expect_whole,
    init_from_file,
    init_method,
    init_weights,
)
from sslengine.models.weights.state import choose as choose_network
from sslengine.models.weights.state import keys_of_network, load_model_state
from sslengine.precision import Precision
from sslengine.trust import closed

log = logging.getLogger("sslengine")

CPU = torch.device("cpu")
# What decides how many channels the network takes, unless IMAGE_MODE is stored.
_DECIDE = (
    "config.MODEL.INPUT_CHANNELS", "config.DATA.TRAIN.IMAGE_MODE", "config.DATA.TRAIN.TRANSFORMS",
)  # fmt: skip
# What is of use to several processes, or in training alone.
_TRAINING = {
    "MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN": False,
    "MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING": False,
}

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Trained")


def untrusting(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Close the trust switch during the method, unless the network's config is trusted."""

    @wraps(method)
    def guarded(self: T, /, *arguments: P.args, **named: P.kwargs) -> R:
        with closed(self.resolved.opened):
            return method(self, *arguments, **named)

    return guarded


class Trained:
    """A trained network in eval mode, and what it takes to use it."""

    network: str  # student, teacher, or model where there is one network
    checkpoint: Path  # of the run; else the file of weights
    class_names: list[str]  # by number; empty where labels are numbers

    def __init__(
        self,
        resolved: Resolved,
        run_folder: Path | None,
        checkpoint: Path | None = None,
        network: str = AUTO,
        device: torch.device = CPU,
    ) -> None:
        """Build the network of the config, and load its weights.

        run_folder: None, or the folder of a network of a library: the config names the weights.
        checkpoint: of the run; None: its newest.
        network: `student` or `teacher` of a method that has both; auto: the method chooses.
        """
        self.resolved, self.run_folder = resolved, run_folder
        self.device, self._wanted = device, network
        self._open(checkpoint)

    @property
    def config(self) -> DictConfig:
        return self.resolved.config

    @property
    def is_run(self) -> bool:
        """Say whether the weights are those of a run's checkpoint."""
        return self.run_folder is not None and self.resolved.engine_name == "train"

    @untrusting
    def _open(self, checkpoint: Path | None) -> None:
        state: Mapping[str, Any] = {}
        if checkpoint is not None:
            state = _read_state(checkpoint)
        elif self.run_folder is not None and self.is_run:
            checkpoint, state = _find_newest(self.run_folder)
        if keys := keys_of_network(self.config, self._wanted):
            self.resolved = replace(self.resolved, config=replaced(self.config, keys))
        with torch.random.fork_rng(devices=[]):
            self.model = build_base_model(replaced(self.config, _TRAINING), self.device)
        self.trunk = trunk_of(self.model)
        if checkpoint is not None:
            self._restore(checkpoint, state)
            return
        self.loaded = load_weights(self.model, self.config, network=self._wanted)
        expect_whole(self.loaded)
        self.checkpoint, self.network = Path(self.loaded.source), self.loaded.network
        self.class_names = []
        self.model.eval()

    @untrusting
    def use(self, checkpoint: Path) -> None:
        """Load the weights of another checkpoint of the run."""
        self._restore(checkpoint, _read_state(checkpoint))

    def _restore(self, checkpoint: Path, state: Mapping[str, Any]) -> None:
        chosen, self.network = choose_network(state, self._wanted, str(checkpoint))
        load_model_state(self.model, chosen["base_model"], alone=True)
        self.checkpoint = checkpoint
        self.class_names = [*(state.get("classes") or [[]])[0]]
        self.model.eval()

    @untrusting
    def open_method(self) -> nn.Module:
        """Build the method that owns the network, with its heads as they were trained."""
        with torch.random.fork_rng(devices=[]):
            method = build_loss(self.config, self.model, 1, self.device)
        self.use(self.checkpoint)  # it may have given the trunk a token of hidden patches
        weights = WeightsInitOptions(PARAMS_FILE=str(self.checkpoint), NETWORK=STUDENT)
        init_method(method, replace(self.options, WEIGHTS_INIT=weights))
        return method.eval()

    @cached_property
    def seed(self) -> int:
        return read(self.config, RunOptions).SEED_VALUE

    @cached_property
    @untrusting
    def options(self) -> ModelOptions:
        """MODEL, with the number of channels that the network takes."""
        options = read(self.config, ModelOptions)
        options.INPUT_CHANNELS = input_channels(self.config)
        return options

    @cached_property
    @untrusting
    def view(self) -> View:
        return View(read(self.config, DataOptions), self.seed, self.trunk.in_chans)

    @cached_property
    def precision(self) -> Precision:
        return build_run_precision(self.config, self.device)

    @property
    def depends_on(self) -> dict[str, Any]:
        """Identify what the features of an image depend on, but for its view."""
        return identify_weights(self.model, read(self.config, ModelOptions))

    @torch.no_grad()
    def trunk_features(self, batch: Tensor, layer: str = "") -> dict[str, Tensor]:
        """Compute the final feature as a vector; of another layer images x tokens x width."""
        if getattr(self.model, "flip_channels", False):
            batch = batch.flip(1)
        with self.precision.autocast():
            (found,) = self.trunk(batch, [layer] if layer else [])
        return {"trunk": self.precision.as_full(found).flatten(2 if layer else 1)}


class View:
    """Make of an image what a trained network takes: `view(view.decode("bird.png"))`.

    Decoded as in training, then resized, cropped and normalised without augmentation.
    `description`: where these transforms come from.
    """

    def __init__(self, data: DataOptions, seed: int, channels: int | None = None) -> None:
        """Build the transforms. channels: that the network takes; None: any."""
        self.entries, self.description = choose(data)
        self.decoder = Decoder.build(data.TRAIN, "TRAIN")
        self._mode, self._channels, self._seed = data.TRAIN.IMAGE_MODE, channels, seed
        self._limits, self._accepted = data.TRAIN.limits, set[int]()
        self._pipeline = Pipeline(self.entries, "the view's transforms", limits=data.TRAIN.limits)

    def __call__(self, image: Image.Image) -> Tensor:
        sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
        with streams_kept():
            # Random transforms draw as for the first image of a test set, every time.
            seed_sample(self._seed, (0, 0))
            result = self._pipeline(sample)["data"][0]
        if not isinstance(result, Tensor):
            raise ConfigError(
                f"config.DATA.TEST.TRANSFORMS: they return {type(result).__name__}; a model needs "
                f"a tensor. End them with ToTensor."
            )
        return result.to(torch.float32)

    def decode(self, image: str | Path | Image.Image | NDArray[Any]) -> Any:
        """Decode a file, or an image in memory as a file with its values; check its bands.

        With IMAGE_MODE stored the result may be an array.
        """
        name = str(image) if isinstance(image, str | Path) else "the image"
        if isinstance(image, str | Path):
            found: Any = open_image(Path(image), self.decoder)
        elif isinstance(image, Image.Image):
            found = self.decoder.given(image)
        else:
            found = self.decoder.convert_array(np.atleast_3d(image))
        self.expect_bands(found, name)
        return found

    def expect_bands(self, image: Any, name: str) -> None:
        """Raise a ConfigError if a decoded image has other bands than the network takes."""
        is_picture, made = isinstance(image, Image.Image), 0
        given = len(image.getbands()) if is_picture else (*np.shape(image), 1)[2]
        if self._channels is None or given in self._accepted:
            return
        with suppress(ConfigError):  # a Normalize of another number
            made = count_channels(self.entries, image, self._limits, "TRANSFORMS") or given
        if made != self._channels:
            raise ConfigError(
                f"{readable(name)} has {given} band{'s' if given > 1 else ''} with "
                f"config.DATA.TRAIN.IMAGE_MODE={self._mode}; the run takes {self._channels} "
                f"(config.MODEL.INPUT_CHANNELS)."
            )
        self._accepted.add(given)


# ---- what is opened


def find_trained(
    source: Path, overrides: Sequence[str] = (), trusted: bool = False, config: str = ""
) -> tuple[Resolved, Path | None, Path | None]:
    """Find the config, the folder and the checkpoint of a trained network.

    source: the folder of a run, a checkpoint in one, or a file of weights of the config's network.
    overrides: as on the command line, `config.DATA.TRAIN.DATA_PATHS=[/their/path/here]`.
    trusted: the run's config may name Python code to import, and refer to other files and the
        environment. Otherwise these are refused, or not read.
    """
    if config:
        resolved = resolve([f"config={config}", *overrides])
        weights = read(resolved.config, ModelOptions).WEIGHTS_INIT
        return set_weights(resolved, replace(weights, PARAMS_FILE=str(source))), None, None
    folder, checkpoint = _find_run(source)
    kept = _keep_channels(folder, overrides, trusted)
    resolved = open_run(folder, [*kept, *overrides], trusted=trusted, judged=True)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    return resolved, folder, checkpoint


def set_weights(resolved: Resolved, weights: WeightsInitOptions, heads: bool = False) -> Resolved:
    """Return the config of a network with the weights of a file. heads: also its heads."""
    values: dict[str, Any] = {"MODEL.WEIGHTS_INIT": weights}
    if not heads:
        values |= {"MODEL.HEAD.PARAMS": [], "MODEL.MULTI_INPUT_HEAD_MAPPING": []}
    return replace(resolved, config=replaced(resolved.config, values))


def _find_run(source: Path) -> tuple[Path, Path | None]:
    if (source / "config.yaml").is_file() or (source.is_dir() and source.suffix != ".shards"):
        return source, None
    checkpoint = source.resolve()
    folder = checkpoint.parent.parent
    if not checkpoint.exists():
        raise MissingCheckpointError(f"{source}: there is no such run, and no such checkpoint.")
    if checkpoint.parent.name != "checkpoints" or not (folder / "config.yaml").is_file():
        raise MissingCheckpointError(
            f"{source}: a checkpoint is read with the config.yaml of its run, and this one is "
            f"not in the folder `checkpoints` of a run. Give the folder of the run; or, for "
            f"weights of VISSL and others, with --config the name of a config that has their "
            f"network."
        )
    return folder, checkpoint


def _keep_channels(folder: Path, overrides: Sequence[str], trusted: bool) -> list[str]:
    """Return the key that keeps the channels of a run's network, for images of any kind.

    Empty where the overrides do not change the channels, for a config that opens only with
    other values, and where IMAGE_MODE is stored: the launch has written the number of channels
    into that config.
    """
    if not any(map(_may_decide, overrides)):
        return []
    with suppress(ConfigError):
        opened = open_run(folder, trusted=trusted, judged=True)
        if read(opened.config, DataOptions).TRAIN.IMAGE_MODE in MODE_CHANNELS:
            with closed(opened.opened):
                return [f"config.MODEL.INPUT_CHANNELS={input_channels(opened.config)}"]
    return []


def _may_decide(override: str) -> bool:
    key = f"{override.partition('=')[0]}."
    known = (f"{each}." for each in _DECIDE)
    return not key.startswith("config.") or any(
        key.startswith(each) or each.startswith(key) for each in known
    )


def _find_newest(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    found = files.newest(folder / "checkpoints")
    if found is None:
        raise CheckpointError(
            f"{folder / 'checkpoints'} holds no checkpoint: train first with the same "
            f"config.CHECKPOINT.DIR."
        )
    return found[0], _take_state(*found)


def _read_state(checkpoint: Path) -> Mapping[str, Any]:
    verify(checkpoint)
    return _take_state(checkpoint, files.read(checkpoint))


def _take_state(path: Path, state: Mapping[str, Any]) -> Mapping[str, Any]:
    if "classy_state_dict" not in state:
        raise CheckpointError(f"{path} has no `classy_state_dict`: no training run saved it.")
    found: Mapping[str, Any] = state["classy_state_dict"]
    return found


# ---- for an engine, with its config and in its folder


def find_weights(config: DictConfig, run_dir: Path) -> Path:
    """Find the file that MODEL.WEIGHTS_INIT names, else the newest checkpoint of the run.

    Without one it is `checkpoint.torch`, which another program may have written. Collective.
    """
    given, folder = read(config, ModelOptions).WEIGHTS_INIT.PARAMS_FILE, run_dir / "checkpoints"
    if not given:
        return newest_path(folder) or folder / files.POINTER
    if own := files.list_checkpoints(folder):  # not read: they are not used
        log.warning(
            "config.MODEL.WEIGHTS_INIT.PARAMS_FILE: %s is used, and not %s. For the checkpoint of "
            "the run in this folder leave it out.", given, own[0],
        )  # fmt: skip
    return Path(given)


def require_weights(config: DictConfig, run_dir: Path) -> Path | None:
    """Find the file of the trained weights, or raise a CheckpointError. Collective.

    None: the pretrained weights that a library has for the trunk.
    """
    path = find_weights(config, run_dir)
    if path.exists():
        return path
    if read(config, ModelOptions).starts_from_library():
        return None
    raise CheckpointError(
        f"there are no trained weights at {path}. Train first with the same config=..., or name a "
        f"file: config.MODEL.WEIGHTS_INIT.PARAMS_FILE=..."
    )


def load_here(config: DictConfig, run_dir: Path, device: torch.device) -> tuple[nn.Module, str]:
    """Build the model from the run's seed with its trained weights; warn if there are none.

    Returns the model, and what its weights are. Collective.
    """
    seed_all(read(config, RunOptions).SEED_VALUE)
    model = build_base_model(config, device)
    path, options = find_weights(config, run_dir), read(config, ModelOptions)
    if not (path.exists() or options.starts_from_weights()):
        log.warning(
            "there is no checkpoint in %s, and config.MODEL.WEIGHTS_INIT.PARAMS_FILE names none: "
            "these are features of an untrained model.",
            path.parent,
        )
        return model, "as initialised"
    loaded = load_weights(model, config, path if path.exists() else None)
    return model, f"{loaded.source} ({loaded.network})"


def load_weights(
    model: nn.Module, config: DictConfig, file: Path | None = None, network: str = AUTO
) -> Loaded:
    """Load weights into the model: those of a file, or else those that MODEL names."""
    options = read(config, ModelOptions)
    if file is not None:
        options.WEIGHTS_INIT.PARAMS_FILE = str(file)
    if network != AUTO:
        options.WEIGHTS_INIT.NETWORK = network
    load = init_weights if options.starts_from_library() else init_from_file
    return load(model, options)


def identify_weights(model: nn.Module, options: ModelOptions) -> dict[str, Any]:
    """Return what a model's features depend on, for stores that keep them."""
    layers = asdict(options.FEATURE_EVAL_SETTINGS)
    return {"weights_sha256": digest(model).hex(), "trunk": options.TRUNK.NAME, "layers": layers}
