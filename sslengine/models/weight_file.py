"""Reading a file of weights without running what it holds.

A pickle is a program. torch's restricted reader takes tensors and plain containers from it;
anything else is refused by name, unless the user says that the file is their own.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sslengine.data.sources.regular_file import kind_of
from sslengine.distributed.shard_files import Peers, is_folder_of_shards, read_folder
from sslengine.errors import CheckpointError
from sslengine.trust import expect_trust

TRUST_PICKLE = "config.MODEL.WEIGHTS_INIT.TRUST_PICKLE"


class NeedsCodeError(CheckpointError):
    """The file holds more than tensors and plain containers."""


_TYPE = re.compile(r"GLOBAL ['\"]?([\w.]+)")


def read_weights(path: Path, trusted: bool = False, peers: Peers | None = None) -> Any:
    """What torch.save wrote, safetensors by the file's name, or a folder of shards. On the CPU.

    trusted: any pickle, and with it any code that it holds.
    peers: the ranks of a sharded run. Of a folder they get their shares; a file is mapped
    into memory, where only what is used takes room.
    """
    if trusted:
        expect_trust(f"the code that {str(path)!r} holds would be run", TRUST_PICKLE, TRUST_PICKLE)
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
        return CheckpointError(f"{path} is damaged or no weights file: {says.splitlines()[-1]}")
    return NeedsCodeError(
        f"{path} holds an object of {kind[1]}, which needs code to load, and a file is not trusted "
        f"with that: no code was run."
    )


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
