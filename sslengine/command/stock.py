"""Make a folder as that of a run for a network of timm's or torchvision's: `timm/NAME`.

Its config.yaml has the network, a file with its weights, and the view of the network's pretrained
config. The file is the user's, or is downloaded: of timm's networks a .safetensors of the hub;
torchvision's files are .pth, which are read without running what they hold.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sslengine.atomic import write_whole
from sslengine.checkpoint.contents import foreign
from sslengine.command.networks import LIBRARIES, Network, expect_known
from sslengine.command.weights_there import expect_weights
from sslengine.config.resolve import resolve_dict
from sslengine.config.show import show
from sslengine.config.yaml_text import load_run
from sslengine.errors import CheckpointError, ConfigError, OutputError
from sslengine.registry import import_dotted

BATCH = 64
FILE = "model.safetensors"  # on the hub: timm's names, and no pickle
# A run's config.yaml has `train`: its weights are those of its checkpoints.
ENGINE = "evaluate"


def find_stock(given: str | Path) -> Network | None:
    """Return the network that is named; None: it is a folder, or has no name of a library."""
    library, _, name = str(given).partition("/")
    if library not in LIBRARIES or not name or Path(given).exists():
        return None
    expect_known(library, name, f"{library}/{name}")
    return Network(library, name)


def as_folder(given: str | Path, weights: str | Path | None, folder: Path | None = None) -> Path:
    """Return the folder of a run as it is; of a stock network `folder`, which is made."""
    network = find_stock(given)
    if network is not None:
        folder = folder or Path("runs", f"{network.name}-judged")
        _write(folder, network, weights)
        return folder
    if weights is not None:
        raise ConfigError("--weights: it belongs to timm/NAME or torchvision/NAME, not to a run.")
    return Path(given)


def _write(folder: Path, network: Network, weights: str | Path | None) -> None:
    """Write the config. weights: a file; None: download it."""
    if weights is not None:
        expect_weights(str(weights), "--weights")
    file = _download(network) if weights is None else Path(weights).expanduser().absolute()
    split = {"TRANSFORMS": view_of(network), "BATCHSIZE_PER_REPLICA": BATCH}
    workers = import_dotted("sslengine.command.machine:look")("auto", None).workers
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


def view_of(network: Network) -> list[dict[str, Any]]:
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


def _download(network: Network) -> Path:
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
