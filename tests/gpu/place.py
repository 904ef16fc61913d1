"""Where the tests of this folder run: on a GPU, or on the device that SSLENGINE_GPU_TESTS names.

`SSLENGINE_GPU_TESTS=cpu` tries the tests themselves where there is no GPU.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from sslengine.testing.runs import RunOutcome, Spec, run
from tests.teachers import needed

NAME = os.environ.get("SSLENGINE_GPU_TESTS", "cuda:0" if torch.cuda.is_available() else "")
IS_CUDA = NAME.startswith("cuda")
needs_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not NAME, reason="needs a CUDA device"),
]

ROOT = Path(__file__).resolve().parents[2]
QUICK = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))
# Values that no rounding of one device can change: Pillow's pixels, and batches in one order.
EXACT = {"DATA.AUGMENT_BACKEND": "pil"}


def quickstart(name: str, device: str = NAME) -> Spec:
    """Four steps of a quickstart, with the hooks that it has."""
    return Spec((f"config=quickstart/{name}", *needed(name)), (EXACT,), device=device)


def trained(spec: Spec, folder: Path, resume_from: Path | None = None) -> RunOutcome:
    return run(spec, folder, resume_from)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """CUDA raises an error where the host waits for the device."""
    if not IS_CUDA:
        yield
        return
    expect_no_waiting()
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def expect_no_waiting() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")


@pytest.fixture
def full_float32() -> Iterator[None]:
    """Products of float32 matrices in float32, not in TF32."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = False
    yield
    for place, value in zip(places, before, strict=True):
        place.allow_tf32 = value


@pytest.fixture
def draws_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers that a method draws on its device are those that a CPU draws."""
    for name in ("rand", "randint"):
        monkeypatch.setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(draw):  # type: ignore[no-untyped-def]
    def drawn(*arguments, device=None, generator=None, **options):  # type: ignore[no-untyped-def]
        if generator is not None:  # one of a device, seeded for tests
            return draw(*arguments, device=device, generator=generator, **options)
        return draw(*arguments, **options).to(device or "cpu")

    return drawn
