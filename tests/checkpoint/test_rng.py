from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from sslengine.checkpoint import files
from sslengine.checkpoint.rng import rng_state, seed_all, set_rng_state


def _draws() -> list[object]:
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tolist(),  # noqa: NPY002
        np.random.randn(),  # noqa: NPY002
        torch.rand(3).tolist(),
    ]


def test_streams_go_on_after_a_trip_through_a_file(tmp_path: Path) -> None:
    seed_all(3)
    _draws()  # leaves half of a Gaussian pair in python's and numpy's streams
    files.write({"rng": rng_state()}, tmp_path, "model_phase0.torch")
    expected = _draws()
    seed_all(99)
    set_rng_state(files.read(tmp_path / "model_phase0.torch")["rng"])
    assert _draws() == expected


def test_one_seed_sets_all_streams() -> None:
    seed_all(2**40 + 1)
    first = _draws()
    seed_all(2**40 + 1)
    assert _draws() == first
    seed_all(2**40 + 2)
    assert all(a != b for a, b in zip(_draws(), first, strict=True))
