"""`--to detectron2`: model.pkl by the names of detectron2's ResNets, as MoCo's converter writes it.

conv1, bn1                      stem.conv1, stem.conv1.norm
layer1.0.conv1, .bn1            res2.0.conv1, res2.0.conv1.norm
layer1.0.downsample.0, .1       res2.0.shortcut, res2.0.shortcut.norm
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from sslengine.errors import ExportError
from sslengine.export.formats import Made
from sslengine.export.subject import UNKNOWN, Subject
from sslengine.export.to_torchvision import torchvision_twin
from sslengine.export.twins import Twin

RENAMED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^(?!layer)", "stem."),
    (r"^layer(\d)", lambda match: f"res{int(match[1]) + 1}"),
    (r"\bbn(\d)\b", r"conv\1.norm"),
    (r"\bdownsample\.0\b", "shortcut"),
    (r"\bdownsample\.1\b", "shortcut.norm"),
)

# As in MoCo's experiments; detectron2's own weights take BGR on another scale.
USAGE = """from detectron2.config import get_cfg
cfg = get_cfg()  # and cfg.merge_from_file of your recipe, before what follows
cfg.MODEL.WEIGHTS = "{{folder}}/model.pkl"
{input}
cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = {mean}, {std}
cfg.MODEL.RESNETS.DEPTH, cfg.MODEL.RESNETS.STRIDE_IN_1X1 = {depth}, False
cfg.MODEL.RESNETS.NUM_GROUPS, cfg.MODEL.RESNETS.WIDTH_PER_GROUP = {groups}, {width}
cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = {channels}
cfg.MODEL.RESNETS.NORM = "SyncBN"
"""
_READS = 'cfg.INPUT.FORMAT = "{}"'
# It reads files as Pillow images of 8 bits.
_OWN_MAPPER = (
    "# the images of your own mapper: tensors {} x height x width with the values of the files"
)
_EIGHT_BITS = "# the images of your own mapper: brought to 8 bits by PIXEL_RANGE {}"
NOT_PROVED = (
    "detectron2 computes maps, not this feature. Names and shapes follow its rule; with the same "
    "tensors, before they were renamed, torchvision gave the same features in the exporting process"
)
_RESNET = re.compile(r"(wide_)?res(net|next)(\d+)(_\w+)?")


def prepare(subject: Subject, license: str) -> Made:
    twin = torchvision_twin(subject)
    named, network = _RESNET.fullmatch(twin.design.name), cast(Any, twin.network)
    if named is None or "maxpool" in twin.replaced:
        what = "with the small stem" if named else f"but {twin.design.name}"
        raise ExportError(f"it is a format of ResNets, and the trunk is one {what}.")
    depth = int(named[3])
    usage = USAGE.format(
        **_pixels(subject),
        depth=depth,
        groups=network.groups,
        width=network.base_width,
        channels=64 if depth in (18, 34) else 256,
    )
    return Made(partial(_write, renamed(twin)), usage=usage, not_proved=NOT_PROVED)


def _pixels(subject: Subject) -> dict[str, Any]:
    """Say what detectron2 normalises, in the scale of the pixels that it gets."""
    if subject.has_bytes is None:
        raise ExportError(f"PIXEL_MEAN is not known: {UNKNOWN}.")
    given, white = subject.preprocessing, 255 if subject.has_bytes else 1
    lines = [_READS.format(subject.image_mode)]
    if subject.image_mode == "stored":
        lines = [_OWN_MAPPER.format(subject.channels)]
    elif subject.pixel_range:
        lines += [_EIGHT_BITS.format(subject.image_options.PIXEL_RANGE)]
    if given.besides:
        lines += [f"# it does not do all that the run does: {given.besides}"]
    return {
        "input": "\n".join(lines),
        "mean": [_short(white * each) for each in given.mean],
        "std": [_short(white * each) for each in given.std],
    }


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def renamed(twin: Twin) -> dict[str, NDArray[Any]]:
    """Rename all tensors but the counters of batch norms, which detectron2's have not."""
    counted = "num_batches_tracked"
    kept = {name: each for name, each in twin.state.items() if not name.endswith(counted)}
    return {_rename(name): tensor.numpy() for name, tensor in kept.items()}


def _rename(name: str) -> str:
    for ours, theirs in RENAMED:
        name = re.sub(ours, theirs, name)
    return name


def _write(arrays: dict[str, NDArray[Any]], folder: Path) -> None:
    content = {"model": arrays, "__author__": "sslengine", "matching_heuristics": True}
    (folder / "model.pkl").write_bytes(pickle.dumps(content))
