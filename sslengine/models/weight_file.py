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

from sslengine.data.decode.files import kind_of
from sslengine.distributed.shard_files import Peers, is_folder_of_shards, read_folder
from sslengine.errors import CheckpointError
from sslengine.trust import expect_trust, search_current_folder

TRUST_PICKLE = "config.MODEL.WEIGHTS_INIT.TRUST_PICKLE"


class NeedsCodeError(CheckpointError):
    """The file holds more than tensors and plain containers."""


_LFS = b"version https://git-lfs"
_ADVICE = ("Weights only load failed", "Please file an issue", "Check the documentation")
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
    "argparse.Namespace",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "Boolean", "Float", "Integer", "String")),
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "typing.Any",
)


# The same as a dict, or its type alone.
_DICTS = (
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
_TYPES = (dict, list, int, float, str, bool)


class _Settings:
    """An object that is not made."""

    def __init__(self, *of: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def read_network(path: Path, trusted: bool = False) -> Any:
    """A file, or a folder, of which only the weights are wanted."""
    if not path.is_dir() or is_folder_of_shards(path):
        return _read_file(path, trusted)
    for name in _IN_FOLDERS:
        file = path / name
        if file.exists():
            return _read_file(file, trusted)
    raise CheckpointError(
        f"the folder {str(path)!r} holds no weights: expected one of {', '.join(_IN_FOLDERS)}."
    )


def files_of(path: Path) -> list[Path]:
    """What `read_network` reads: of a folder the file, or the files of a large model."""
    if not path.is_dir() or is_folder_of_shards(path):
        return [path]
    found = next(path / name for name in _IN_FOLDERS if (path / name).exists())
    return [found.parent / name for name in _parts(found)] if found.suffix == ".json" else [found]


def _read_file(path: Path, trusted: bool) -> Any:
    if path.name.endswith(".index.json"):
        return _read_parts(path, trusted)
    with nullcontext() if trusted else _without_settings():
        # A run's newest checkpoint is a link, to a folder where it is sharded.
        content = read_weights(path.resolve() if path.suffix == ".torch" else path, trusted)
    return content.state_dict() if isinstance(content, nn.Module) else content


def _read_parts(index: Path, trusted: bool) -> dict[str, Any]:
    return {
        name: tensor
        for file in _parts(index)
        for name, tensor in _read_file(index.parent / file, trusted).items()
    }


def _parts(index: Path) -> list[str]:
    """The files that a large model's index lists."""
    expect_file(index)
    try:
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = [file for file in files if Path(file).name != file]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged or no index of weights: {error!r}") from error
    if outside:
        raise CheckpointError(f"{index} names {outside[0]!r}, which is not in its folder.")
    return files


def _empty_dict(*of: Any) -> dict[Any, Any]:
    return {}


@contextmanager
def _without_settings() -> Iterator[None]:
    stand_ins: list[Any] = [(_Settings, name) for name in _SETTINGS]
    stand_ins += [(dict, name) for name in _DICTS]
    stand_ins += [(each, f"builtins.{each.__name__}") for each in _TYPES]
    stand_ins.append((_empty_dict, "collections.defaultdict"))
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
    """What torch.save wrote, safetensors by the file's name, or a folder of shards. On the CPU.

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
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{path} holds objects of {error.name}, which is not installed here. Install it, or "
            f"save the tensors alone where it is: torch.save(model.state_dict(), ...)."
        ) from error
    except Exception as error:  # bytes that are no pickle raise anything
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{path} is a program of TorchScript. Save its tensors alone: "
                f"torch.save(torch.jit.load(FILE).state_dict(), ...)."
            ) from error
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
    """torch's own text recommends to try again without the restriction."""
    kind = _TYPE.search(says)
    if kind is None:
        return CheckpointError(f"{path} is damaged or no weights file: {_reason(says)}")
    return NeedsCodeError(
        f"{path} holds an object of {kind[1]}, which needs code to load, and a file is not trusted "
        f"with that: no code was run."
    )


def _reason(says: str) -> str:
    told = [line for line in says.splitlines() if line and not line.startswith(_ADVICE)]
    return told[-1] if told else says


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
