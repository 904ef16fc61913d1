"""Find the network that a name means: a trunk of sslengine's or a plugin's, timm's, torchvision's.

    --model vit_small_patch16_224       the first that has such a name, in this order
    --model torchvision:resnet50        of this library
    --model my_package.my_module:Mine   a class of yours
    judge timm/resnet50                 a library's network with its weights, in place of a run

The words before the colon are a library, or a module. A network in place of a run gets a folder as
that of a run: its config.yaml has the network, a file with its weights, and the view of the
network's pretrained config. The file is the user's, or is downloaded: of timm's networks a
.safetensors of the hub; torchvision's are .pth, which are read without running what they hold.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sslengine.atomic import write_whole
from sslengine.checkpoint.contents import foreign
from sslengine.command.arguments import expect_weights
from sslengine.config.resolve import resolve_dict
from sslengine.config.show import show
from sslengine.config.yaml_text import load_run
from sslengine.errors import CheckpointError, ConfigError, OutputError, UnknownNameError, nearest
from sslengine.registry import TRUNKS

LIBRARIES = ("timm", "torchvision")
# Before timm's names of weights in a folder, and on a hub.
PLACES = ("local-dir", "hf-hub", "hf_hub")
# Modules of timm whose networks take images of another side, by an argument.
TRANSFORMERS = ("vision_transformer", "deit", "eva", "beit")
# The trunk of sslengine's that can leave patches out, and one of timm's.
SHOWING, A_VIT = "vision_transformer", "vit_small_patch16_224"
# The side of images that most networks are made for.
SIDE = 224
_DECORATED = re.compile(r"^@register_model(?:\(.*?\))?\n(?:@.*\n)*def (\w+)\(", re.M)
BATCH = 64
FILE = "model.safetensors"  # on the hub: timm's names, and no pickle
# A run's config.yaml has `train`: its weights are those of its checkpoints.
ENGINE = "evaluate"


@cache
def names_of(library: str) -> tuple[str, ...]:
    """Return the networks of a library, from its source: it is not imported."""
    return tuple(sorted({name for text in _sources(library) for name in _DECORATED.findall(text)}))


def _sources(library: str) -> Iterator[str]:
    spec = PathFinder.find_spec(library)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(Path(next(iter(folders)), "models").glob("*.py")) if folders else []
    return (file.read_text(encoding="utf-8") for file in files)


def trunks() -> list[str]:
    """Return the names of trunks, but for the libraries: those are named by their networks."""
    return [name for name in TRUNKS.names() if name not in LIBRARIES]


@dataclass(frozen=True)
class StockNetwork:
    library: str  # empty: a trunk of the registry
    name: str

    def __str__(self) -> str:
        return self.name

    def keys(self, side: int, many_views: bool, pretrained: bool) -> dict[str, Any]:
        """Return the keys of MODEL.TRUNK for images of this side."""
        if not self.library:
            if pretrained:
                raise ConfigError(
                    f"--pretrained: {self.name} is a trunk of sslengine's or of a plugin's, which "
                    f"has no weights that were trained elsewhere. Give a file with --weights."
                )
            sized = f"MODEL.TRUNK.{self.section}.IMAGE_SIZE" if self.section else ""
            return {"MODEL.TRUNK.NAME": self.name, **({sized: side} if sized else {})}
        section = f"MODEL.TRUNK.{self.library.upper()}"
        arguments = dict(self._arguments(side, many_views))
        return {
            "MODEL.TRUNK.NAME": self.library,
            f"{section}.model": self.name,
            **({f"{section}.arguments": arguments} if arguments else {}),
            **({f"{section}.pretrained": True} if pretrained else {}),
        }

    def _arguments(self, side: int, many_views: bool) -> Iterator[tuple[str, Any]]:
        if self.library == "torchvision":
            if self.name.startswith("vit_") and side != SIDE:
                yield "image_size", side
            return
        import timm

        if timm.model_entrypoint(self.name).__module__.rpartition(".")[2] not in TRANSFORMERS:
            return
        native = timm.get_pretrained_cfg(self.name)
        if native is None or native.input_size[-1] != side:
            yield "img_size", side
        if many_views:
            yield "dynamic_img_size", True

    @property
    def section(self) -> str:
        """The section of a trunk's sizes, if it is made for images of one side."""
        from sslengine.models.options import TrunkOptions

        made_by = TRUNKS.options(self.name)
        found = (key for key, each in vars(TrunkOptions()).items() if type(each) is made_by)
        return next((key for key in found if hasattr(made_by, "IMAGE_SIZE")), "")

    @property
    def patch_side(self) -> int | None:
        """The side of the patches that it embeds; None: it embeds none."""
        if self.library == "timm":
            embed: Any = getattr(self._skeleton(), "patch_embed", None)
            return int(embed.feat_ratio()) if hasattr(embed, "feat_ratio") else None
        if not self.library and self.section:
            made_by: Any = TRUNKS.options(self.name)
            return getattr(made_by(), "PATCH_SIZE", None)
        return None

    @property
    def can_leave_patches_out(self) -> bool:
        """Say whether it can; of a plugin's trunk the launch says it."""
        if self.library == "timm":
            from sslengine.models.trunks.tokens import can_show

            return can_show(self._skeleton())
        shipped = self.name in TRUNKS and TRUNKS.owner(self.name).startswith("sslengine.")
        return not self.library and (self.name == SHOWING or not shipped)

    @property
    def pools_class_token(self) -> bool:
        """Say whether a ViT of timm's does by default: another pool needs no other layers then."""
        from timm.models.vision_transformer import VisionTransformer

        if self.library != "timm" or not isinstance(self._skeleton(), VisionTransformer):
            return False
        return bool(self._skeleton().global_pool == "token")

    def _skeleton(self) -> Any:
        return _build_skeleton(self.name)

    @property
    def has_class_token(self) -> bool:
        """Say whether it has one; before the launch this is known of timm's networks alone."""
        return self.library != "timm" or getattr(self._skeleton(), "cls_token", None) is not None

    def expect_for(self, method: str, hides: str, reads_class: bool) -> None:
        """Raise a ConfigError if the method masks patches, sees those `shown` alone, or reads the
        class token, and this network cannot."""
        can = hides != "shown" or self.can_leave_patches_out
        lacks = "" if can else "cannot leave patches out"
        if hides == "mask" and not self.patch_side:
            lacks = "is no network of timm's that embeds patches"
        what = "trains on a part of an image's patches"
        if not lacks and reads_class and not self.has_class_token:
            what, lacks = "trains on the class token", "has none"
        if lacks:
            raise ConfigError(
                f"--model: {method} {what}, and {self.name!r} {lacks}. Name {SHOWING}, or a vision "
                f"transformer of timm's, such as {A_VIT}."
            )


@cache
def _build_skeleton(name: str) -> Any:
    """Build the network of timm's without memory for its weights."""
    import timm
    import torch

    with torch.device("meta"):
        return timm.create_model(name)


def find(given: str) -> StockNetwork:
    library, _, name = given.partition(":")
    if library in LIBRARIES and name:
        expect_in_library(library, name, "--model")
        return StockNetwork(library, name)
    if library in PLACES and name:
        raise ConfigError(
            f"--model: {given} names weights, and --model takes a network. Give both, the network "
            f"as `architecture` in the config.json of the weights has it: --model NAME "
            f"--weights FILE.safetensors."
        )
    if ":" in given or given in trunks():
        return StockNetwork("", given)
    for library in LIBRARIES:
        if has(library, given):
            return StockNetwork(library, given)
    hint = nearest(given, [*trunks(), *names_of("timm"), *names_of("torchvision")])
    raise UnknownNameError(
        f"--model: neither timm nor torchvision has a network {given!r}, and no trunk has this "
        f"name. {hint}\n  `sslengine list models '*PART*'` lists names with a part; a trunk of "
        f"your own: --plugin MODULE."
    )


def expect_in_library(library: str, name: str, option: str) -> None:
    if not has(library, name):
        raise UnknownNameError(
            f"{option}: {library} has no {name!r}. {nearest(name, names_of(library))}".rstrip()
        )


def has(library: str, name: str) -> bool:
    arch = name.partition(".")[0] if library == "timm" else name  # without the name of weights
    if arch in names_of(library) or library == "torchvision":
        return arch in names_of(library)
    if "timm" not in sys.modules and not any(f"'{arch}'" in text for text in _sources(library)):
        return False
    import timm

    return bool(timm.is_model(name))  # an earlier name, or what a plugin adds


# ---- a network in place of a run


def find_stock(given: str | Path) -> StockNetwork | None:
    """Return the network that is named; None: it is a folder, or has no name of a library."""
    library, _, name = str(given).partition("/")
    if library not in LIBRARIES or not name or Path(given).exists():
        return None
    expect_in_library(library, name, f"{library}/{name}")
    return StockNetwork(library, name)


def make_folder(given: str | Path, weights: str | Path | None, folder: Path | None = None) -> Path:
    """Return the folder of a run as it is; of a stock network `folder`, which is made."""
    network = find_stock(given)
    if network is not None:
        folder = folder or Path("runs", f"{network.name}-judged")
        _write(folder, network, weights)
        return folder
    if weights is not None:
        raise ConfigError("--weights: it belongs to timm/NAME or torchvision/NAME, not to a run.")
    return Path(given)


def _write(folder: Path, network: StockNetwork, weights: str | Path | None) -> None:
    """Write the config. weights: a file; None: download it."""
    from sslengine.command.machine import look

    if weights is not None:
        expect_weights(str(weights), "--weights")
    file = _download(network) if weights is None else Path(weights).expanduser().absolute()
    split = {"TRANSFORMS": view_of(network), "BATCHSIZE_PER_REPLICA": BATCH}
    workers = look().workers
    tree: dict[str, Any] = {
        "MODEL": {
            "TRUNK": {"NAME": network.library, network.library.upper(): {"model": network.name}},
            "WEIGHTS_INIT": {"PARAMS_FILE": str(file)},
        },
        "DATA": {"NUM_DATALOADER_WORKERS": workers, "TRAIN": split, "TEST": split},
        "MACHINE": {"DEVICE": "auto", "PRECISION": "auto"},
        "DISTRIBUTED": {"NUM_PROC_PER_NODE": 1},
        "CHECKPOINT": {"DIR": str(folder)},
    }
    content = show(resolve_dict(tree, f"{network.library}/{network.name}", ENGINE)).encode()
    config = folder / "config.yaml"
    if foreign(folder) or (config.exists() and _network(config.read_bytes()) != _network(content)):
        raise OutputError(
            f"{folder} has files of another kind, a run, or another network. Choose a new or empty "
            f"folder: --out FOLDER."
        )
    write_whole(config, content)


def _network(config: bytes) -> tuple[Any, Any]:
    tree: Any = load_run(config, "config.yaml")
    return tree.get("engine_name"), tree["config"].get("MODEL")


def view_of(network: StockNetwork) -> list[dict[str, Any]]:
    """List what the library does to an image, as transforms of this package."""
    if network.library == "torchvision":
        preset = _weights_of_torchvision(network.name).transforms()
        (resized,), (side,) = preset.resize_size, preset.crop_size
        return _entries(resized, side, preset.interpolation.value, preset.mean, preset.std)
    import timm

    config = timm.get_pretrained_cfg(network.name)
    data = timm.data.resolve_data_config(pretrained_cfg=config.to_dict() if config else {})
    height, width = data["input_size"][1:]
    resized = [math.floor(side / data["crop_pct"]) for side in (height, width)]
    if data["crop_mode"] == "center" and height == width:
        resized = resized[0]
    elif data["crop_mode"] != "squash":
        raise ConfigError(
            f"timm/{network.name}: its pretrained config crops by {data['crop_mode']!r} to "
            f"{height} x {width} pixels, which no transform here does."
        )
    return _entries(resized, [height, width], data["interpolation"], data["mean"], data["std"])


def _entries(resized: Any, side: Any, interpolation: str, mean: Any, std: Any) -> list[Any]:
    return [
        {"name": "Resize", "size": resized, "interpolation": interpolation},
        {"name": "CenterCrop", "size": side},
        {"name": "ToTensor"},
        {"name": "Normalize", "mean": [*mean], "std": [*std]},
    ]


def _weights_of_torchvision(name: str) -> Any:
    import torchvision

    known: Any = torchvision.models.get_model_weights(name)
    return known.DEFAULT


def _download(network: StockNetwork) -> Path:
    """Download the weights into the library's cache, unless they are there."""
    import timm
    from huggingface_hub import hf_hub_download
    from torch import hub

    try:
        if network.library == "torchvision":
            url = _weights_of_torchvision(network.name).url
            hub.load_state_dict_from_url(url, check_hash=True, weights_only=True)
            return Path(hub.get_dir(), "checkpoints", url.rpartition("/")[2])
        config = timm.get_pretrained_cfg(network.name)
        if config is None or not config.hf_hub_id:
            raise CheckpointError("timm names none on the hub.")
        if config.hf_hub_filename not in (None, FILE):
            raise CheckpointError(f"on the hub they are {config.hf_hub_filename}, expected {FILE}.")
        repository, _, revision = config.hf_hub_id.partition("@")
        return Path(hf_hub_download(repository, FILE, revision=revision or None))
    except Exception as error:  # without a network there are many
        raise CheckpointError(
            f"{network.library}/{network.name}: its weights cannot be downloaded: {error}\n  "
            f"If you have them in a file: --weights FILE."
        ) from error
