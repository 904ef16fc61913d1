"""Reading a file of weights without running what it holds.

A pickle is a program. torch's restricted reader takes tensors and plain containers from it;
anything else is refused by name, unless the user says that the file is their own. With the
weights, other programs' checkpoints hold settings as objects; where only the weights are wanted,
these objects are not made: an empty object replaces each.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from sslengine.data.decode.files import how_far, kind_of
from sslengine.distributed.shard_files import Peers, is_folder_of_shards, read_folder
from sslengine.errors import CheckpointError, MissingCheckpointError
from sslengine.models.options import WeightsInitOptions
from sslengine.trust import expect_trust, search_current_folder

WHERE = "config.MODEL.WEIGHTS_INIT"
TRUST_PICKLE = f"{WHERE}.TRUST_PICKLE"
# Advice for a run's weights, which a teacher's have no keys for.
TO_TRUST = f" Only if it is your own: --trust-pickle ({TRUST_PICKLE}=true)."

_LFS = b"version https://git-lfs"
_TYPE = re.compile(r"GLOBAL ['\"]?([\w.]+)")
# Files with a network's weights in the folders of timm, transformers and lightly-train, and the
# newest checkpoint of a run. The first that is there is read.
_IN_FOLDERS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "checkpoints/checkpoint.torch",
    "exported_models/exported_last.pt",
)
_SETTINGS = (
    "argparse.Namespace", "numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar",
    "numpy.dtype", "omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig",
    *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "Boolean", "Float", "Integer", "String")),
    "pathlib.PosixPath", "pathlib._local.PosixPath", "typing.Any",
)  # fmt: skip
# What is the same as a dict, or its type alone.
_DICTS = (
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
_TYPES = (dict, list, int, float, str, bool)


class NeedsCodeError(CheckpointError):
    """The file holds more than tensors and plain containers."""


def expect_params_file(weights: WeightsInitOptions) -> None:
    """Raise if PARAMS_FILE names nothing that is there."""
    path = weights.PARAMS_FILE
    if "://" in path or path.startswith("hf-hub:"):
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: {path} is an address; download the file and give its path."
        )
    if not Path(path).exists():
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: there is no file {path!r}: {how_far(Path(path))}"
        )


def read_params_file(weights: WeightsInitOptions) -> Any:
    """Return what PARAMS_FILE holds."""
    expect_params_file(weights)
    try:
        return read_network(Path(weights.PARAMS_FILE), weights.TRUST_PICKLE)
    except CheckpointError as error:
        advice = (
            f" Load it where it was made and save the tensors alone: torch.save("
            f"model.state_dict(), ...).{TO_TRUST}"
        )
        more = advice if isinstance(error, NeedsCodeError) else ""
        raise CheckpointError(f"{WHERE}.PARAMS_FILE: {error}{more}") from error


def read_network(path: Path, trusted: bool = False) -> Any:
    """Read a file, or a folder, of which only the weights are wanted."""
    path = _find_file(path)
    if path.name.endswith(".index.json"):
        parts = [read_network(path.parent / file, trusted) for file in _list_parts(path)]
        return {name: tensor for part in parts for name, tensor in part.items()}
    with nullcontext() if trusted else _ignore_settings():
        # A run's newest checkpoint is a link, to a folder where it is sharded.
        content = read_weights(path.resolve() if path.suffix == ".torch" else path, trusted)
    return content.state_dict() if isinstance(content, nn.Module) else content


def list_files(path: Path) -> list[Path]:
    """Return what `read_network` reads: of a folder the file, or the files of a large model."""
    file = _find_file(path)
    if file.name.endswith(".index.json"):
        return [file.parent / name for name in _list_parts(file)]
    return [file]


def _find_file(path: Path) -> Path:
    if not path.is_dir() or is_folder_of_shards(path):
        return path
    for name in _IN_FOLDERS:
        if (path / name).exists():
            return path / name
    raise CheckpointError(
        f"the folder {str(path)!r} holds no weights: expected one of {', '.join(_IN_FOLDERS)}."
    )


def _list_parts(index: Path) -> list[str]:
    """Return the files that a large model's index lists."""
    expect_file(index)
    try:
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = [file for file in files if Path(file).name != file]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged or no index of weights: {error!r}") from error
    if outside:
        raise CheckpointError(f"{index} names {outside[0]!r}, which is not in its folder.")
    return files


class _Settings:
    """An object that is not made."""

    def __init__(self, *of: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _make_empty_dict(*of: Any) -> dict[Any, Any]:
    return {}


@contextmanager
def _ignore_settings() -> Iterator[None]:
    stand_ins: list[Any] = [(_Settings, name) for name in _SETTINGS]
    stand_ins += [(dict, name) for name in _DICTS]
    stand_ins += [(each, f"builtins.{each.__name__}") for each in _TYPES]
    stand_ins.append((_make_empty_dict, "collections.defaultdict"))
    with torch.serialization.safe_globals(stand_ins):
        yield


@contextmanager
def weights_only() -> Iterator[None]:
    """Restrict torch.load in libraries too, which may ask it for any pickle."""
    names = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ[names[0]] = "1"
    try:
        yield
    finally:
        del os.environ[names[0]]
        os.environ.update(before)


def read_weights(path: Path, trusted: bool = False, peers: Peers | None = None) -> Any:
    """Read on the CPU what torch.save wrote, safetensors by name, or a folder of shards.

    trusted: any pickle, and with it any code that it holds.
    peers: the ranks of a sharded run. Of a folder they get their shares; a file is mapped
    into memory, where only what is used takes room.
    """
    if trusted:
        expect_trust(f"the code that {str(path)!r} holds would be run", TRUST_PICKLE, TRUST_PICKLE)
        search_current_folder()
    if is_folder_of_shards(path):
        return _read_shards(path, peers)
    expect_file(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        mapped = peers is not None
        return torch.load(path, map_location="cpu", weights_only=not trusted, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise _refusal(path, str(error)) from error
    except Exception as error:  # bytes that are no pickle raise anything
        raise CheckpointError(
            f"{path} is damaged or no weights file: {first_line(error)}"
        ) from error


def expect_file(path: Path) -> None:
    """Raise unless a regular file is there: reading a FIFO would wait for ever."""
    if kind := kind_of(path):
        raise CheckpointError(f"{path} is {kind}: expected a file.")
    if not path.is_file():
        raise CheckpointError(f"there is no file {str(path)!r}.")
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise CheckpointError(f"{path} is a pointer of Git LFS. `git lfs pull` gets the file.")


def _read_shards(folder: Path, peers: Peers | None) -> Any:
    for path in folder.iterdir():
        if not path.is_dir():
            expect_file(path)
    try:
        return read_folder(folder, peers)
    except Exception as error:
        raise CheckpointError(
            f"{folder} is damaged or no sharded checkpoint: {first_line(error)}"
        ) from error


def _refusal(path: Path, says: str) -> CheckpointError:
    """Return an error without torch's advice to try again without the restriction."""
    kind = _TYPE.search(says)
    if kind is None:
        return CheckpointError(f"{path} is damaged or no weights file.")
    return NeedsCodeError(
        f"{path} holds an object of {kind[1]}, which needs code to load, and a file is not trusted "
        f"with that: no code was run."
    )


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
