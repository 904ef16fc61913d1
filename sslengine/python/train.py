"""Do what the verbs do from Python: `sslengine.train`, `load`, `embed`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from sslengine.command import judge, report
from sslengine.command import train as verb
from sslengine.command.arguments import collect
from sslengine.command.embed import Embedded, embed
from sslengine.config.compose import typed
from sslengine.errors import TrainingError
from sslengine.export import export
from sslengine.export.subject import make_subject
from sslengine.launch.cli import run_all, settled
from sslengine.models.weights import AUTO
from sslengine.monitor import history
from sslengine.predictor.predictor import Prediction, Predictor
from sslengine.python.files import Data, open_data
from sslengine.trained import Trained, find_trained
from sslengine.trust import closed

log = logging.getLogger("sslengine")

# What `predict` takes.
Picture = str | Path | Image.Image | NDArray[Any]


@dataclass(frozen=True)
class TrainedRun:
    """The folder of a run, and what can be done with it."""

    folder: Path

    def __repr__(self) -> str:
        return f"TrainedRun({self.folder})"

    def load(self, network: str = AUTO) -> Backbone:
        return load(self.folder, network=network)

    def embed(
        self,
        data: Data,
        *,
        network: str = AUTO,
        device: str = "auto",
        batch_size: int | None = None,
        workers: int | None = None,
        image_column: str | None = None,
        label_column: str | Sequence[str] | None = None,
        overrides: Sequence[str] = (),
        tokens: str = "image",
    ) -> Embedded:
        """Return the features of images, as `sslengine.embed` does."""
        return embed(
            self.folder, data, network=network, device=device, batch_size=batch_size,
            workers=workers, image_column=image_column, label_column=label_column,
            overrides=overrides, tokens=tokens,
        )  # fmt: skip

    def export(
        self,
        out: str | Path,
        to: str = "timm",
        *,
        network: str = AUTO,
        overrides: Sequence[str] = (),
        license: str = "",
    ) -> Path:
        """Write the network as other libraries read it, as `sslengine.export` does."""
        return export(self.folder, out, to, network=network, overrides=overrides, license=license)

    def judge(
        self,
        train: str | Path | None = None,
        val: str | Path | None = None,
        *,
        suite: str = "quick",
        network: str = AUTO,
        device: str = "auto",
        overrides: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Judge as `sslengine judge` does, and return the content of evaluation.json.

        train, val: labelled images; without them the run's own. overrides: KEY=VALUE, as --set.
        """
        images = {"--train": train, "--val": val}
        words = [f"{name}={place}" for name, place in images.items() if place is not None]
        words += [f"--suite={suite}", f"--network={network}", f"--device={device}"]
        if judge.main([str(self.folder), *words, *(f"--set={each}" for each in overrides)]):
            raise TrainingError(
                f"{self.folder}: a part was not judged, because of the error above."
            )
        found: dict[str, Any] = json.loads((self.folder / "evaluation.json").read_text("utf-8"))
        return found

    def report(self) -> Path:
        """Write the page as `sslengine report` does, and return its file."""
        report.main([str(self.folder)])
        return self.folder / "report.html"

    def predict(
        self, images: Picture | Sequence[Picture], *, nearest: int = 5, network: str = AUTO,
        device: str = "auto", overrides: Sequence[str] = (),
    ) -> list[Prediction]:  # fmt: skip
        """Predict as `sslengine predict` does one image or several: files, or images in memory."""
        predictor = Predictor(
            self.folder, nearest=nearest, device=device, network=network, overrides=typed(overrides)
        )
        one = isinstance(images, str | Path | Image.Image | np.ndarray)
        several: Any = [images] if one else images
        return [predictor(each) for each in several]

    def metrics(self, kind: str | None = "step", split: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl; see sslengine.monitor.history."""
        return history.read(self.folder, kind, split)


class Backbone(nn.Module):
    """A trained trunk: images (N, channels, height, width) -> features (N, feature_dim)."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        subject = make_subject(trained)
        self.trunk, self.network = subject.trunk.requires_grad_(True), subject.network
        self.checkpoint = subject.checkpoint
        self._view = trained.view
        with torch.no_grad():
            self.feature_dim = self(subject.images[:1]).shape[1]

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.trunk(images)
        flat: Tensor = features.flatten(1)
        return flat

    @property
    def run(self) -> TrainedRun:
        """The run that it was loaded from, whose checkpoints its methods use."""
        return TrainedRun(self.checkpoint.parent.parent)

    def transform(self, image: Image.Image | NDArray[Any]) -> Tensor:
        """Return an image as the trunk takes it: resized, cropped in the centre, normalised.

        It is converted as a file of DATA would be: grey becomes RGB, and through transparent
        pixels the colour of the run's TRANSPARENT is seen.
        image: an array is height x width, or height x width x channels.
        """
        return self._view(self._view.decode(image))


def train(
    data: Data,
    method: str | None = None,
    model: str | None = None,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    size: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    val: float | None = None,
    group: str | None = None,
    image_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    stream: bool = False,
    length: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    gpus: int | None = None,
    precision: str | None = None,
    workers: int | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
    freeze_trunk: int | None = None,
    plugins: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    config_dir: Sequence[str] = (),
) -> TrainedRun:
    """Train as `sslengine train` does, with the options of its --help.

    data: a path; an array of images, N x height x width x channels or N x channels x height x
        width; a list of Pillow images; (images, labels) of these; a torch Dataset of Pillow images
        or of (image, label), without a transform; a Dataset or DatasetDict of the package
        `datasets`.
    values: keys of the config, as `--set`.

    With several GPUs a process is started for each: call it below `if __name__ == "__main__":`.
    """
    asked = {**locals()}  # what was given, by the names of ARGUMENTS
    with open_data(data) as files:
        asked |= {"data": files.images, "values": {**files.values, **(values or {})}}
        given = collect(verb.ARGUMENTS, asked)
        arguments, line = verb.choose(given, files.labels)
        log.info("%s", line)
        runs = settled(arguments, given.config_dir)
        run_all(runs)
    return TrainedRun(Path(runs[0].config.CHECKPOINT.DIR))


def load(run: str | Path, *, network: str = AUTO, trust_config: bool = False) -> Backbone:
    """Return the trunk of a run's newest checkpoint, or of one of its checkpoints, in eval mode."""
    resolved, folder, checkpoint = find_trained(Path(run), trusted=trust_config)
    with closed(resolved.opened):
        return Backbone(Trained(resolved, folder, checkpoint, network)).eval()
