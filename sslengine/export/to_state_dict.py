"""`--to state-dict`: the trunk's tensors by their own names. Any trunk has this format."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from sslengine.export.formats import Made, Proof
from sslengine.export.subject import Subject, plain

LOAD = """from safetensors.torch import load_file
weights = load_file("{folder}/model.safetensors")
"""
# Without torch, which takes seconds to import.
_LOAD_ARRAYS = LOAD.replace("safetensors.torch", "safetensors.numpy")
_DIGEST = """import hashlib
whole = hashlib.sha256()
for name in sorted(weights):
    whole.update(name.encode() + repr(tuple(weights[name].shape)).encode())
    whole.update(weights[name].tobytes())
features = numpy.frombuffer(whole.digest(), dtype=numpy.uint8)"""


def prepare(subject: Subject, license: str) -> Made:
    proof = Proof(
        "safetensors",
        _LOAD_ARRAYS,
        _DIGEST,
        torch=False,
        tolerance=0.0,
        given=np.zeros(0),
        expected=_digest(subject),
        compared="all tensors, bit by bit; outputs take the network, which the file does not hold",
    )
    return Made(partial(_write, subject), usage=LOAD, proofs=(proof,))


def _write(subject: Subject, folder: Path) -> None:
    state = plain(subject.trunk.state_dict())
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def _digest(subject: Subject) -> NDArray[np.uint8]:
    whole = hashlib.sha256()
    for name, tensor in sorted(plain(subject.trunk.state_dict()).items()):
        whole.update(name.encode() + repr(tuple(tensor.shape)).encode())
        whole.update(tensor.numpy().tobytes())
    return np.frombuffer(whole.digest(), dtype=np.uint8)
