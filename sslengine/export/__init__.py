"""Write a trained trunk into a folder that other libraries read, without sslengine.

    sslengine.export("runs/birds", "birds-vit")                  # timm, transformers, lightly
    sslengine.export("runs/birds", "birds-onnx", to="onnx")

Importing this package imports no torch: `FORMATS` can be listed at once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from sslengine.config.compose import typed
from sslengine.errors import ExportError, OutputError, UnknownNameError, listing, nearest
from sslengine.registry import import_dotted

# The formats, each a module of this package: to_<name>.py; the seldom ones are in contrib/.
FORMATS: dict[str, str] = {
    "timm": "model.safetensors and config.json: for timm, transformers' AutoModel, lightly",
    "torchvision": "model.pth in torchvision's names, without a classifier",
    "hf-dinov2": "a vision transformer as transformers' own Dinov2Model and Dinov2Backbone",
    "onnx": "model.onnx, and for images of 8 bits model_uint8.onnx, which normalises them",
    "pt2": "model.pt2: a program of torch.export, which needs torch alone",
    "detectron2": "model.pkl: a ResNet by the names of detectron2's backbones",
    "state-dict": "model.safetensors with the trunk's tensors by their own names",
}

SELDOM = ("detectron2",)
# Packages that write a format.
_NEEDED = {"onnx": ("onnx", "onnxscript"), "hf-dinov2": ("transformers",)}


def export(
    source: str | Path,
    out: str | Path,
    to: str = "timm",
    *,
    network: str = "auto",
    overrides: Sequence[str] = (),
    trust_config: bool = False,
    license: str = "",
    config: str = "",
) -> Path:
    """Write the trunk of a run into the new folder `out`, and prove that it can be read.

    source: the folder of a run (its newest checkpoint), or one of its checkpoints.
    to: one of FORMATS.
    network: `student` or `teacher` of a method that has both; auto: the method chooses.
    overrides: KEY=VALUE, as --set: `DATA.TRAIN.DATA_PATHS=[/their/path/here]`.
    trust_config: allow the run's config.yaml to name Python code to import.
    config: where source is a file of weights of another program: the name of a config that has
        their network, such as `pretrain/simclr/simclr_64gpu_resnet50`.
    license: of the weights, an identifier such as `mit`; they are yours.
    """
    if to not in FORMATS:
        raise UnknownNameError(
            f"--to: there is no format {to!r}. {nearest(to, FORMATS)}\n  "
            f"There is: {listing(FORMATS)}"
        )
    expect_packages(to)
    expect_free(Path(os.path.abspath(out)))
    folder = import_dotted("sslengine.export.folder:export")
    made: Path = folder(source, out, to, network, typed(overrides), trust_config, license, config)
    return made


def expect_packages(to: str) -> None:
    missing = [name for name in _NEEDED.get(to, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"--to {to}: install {' and '.join(missing)} first: pip install 'sslengine[export]'."
        )


def expect_free(out: Path) -> None:
    if out.is_dir() and not out.is_symlink():
        if any(out.iterdir()):
            raise OutputError(f"{out} is not empty, and is not overwritten. Give a new folder.")
    elif out.exists() or out.is_symlink():
        raise OutputError(f"{out} is no folder, and is not overwritten. Give a new folder.")
    above = next(each for each in out.absolute().parents if each.exists())
    if not above.is_dir():
        raise OutputError(f"{out} cannot be a folder: {above} is a file.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{out} cannot be written: the folder {above} is not writable.")


class _Callable(ModuleType):
    """`sslengine.export(...)`: importing this package gives the name `export` to the package."""

    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Callable
