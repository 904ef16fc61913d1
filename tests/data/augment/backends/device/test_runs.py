"""Small whole runs whose colours are made after collate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sslengine.trainer import loop
from tests.data.augment.lists import LISTS
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.task.runs import Watch, make_task

SIMCLR: dict[str, Any] = {
    "DATA__TRAIN__DATA_SOURCES": ["synthetic"],
    "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": True,
    "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 20,
    "DATA__TRAIN__TRANSFORMS": LISTS["simclr"],
    "DATA__TRAIN__COLLATE_FUNCTION": "simclr_collator",
}


def test_a_run_goes_on_in_mid_epoch(tmp_path: Path) -> None:
    assert_goes_on_bit_by_bit(tmp_path, after=3, DATA__AUGMENT_BACKEND="device", **SIMCLR)


def test_the_losses_are_those_of_the_workers_back_end(tmp_path: Path) -> None:
    found = []
    for backend in ("auto", "device"):
        losses = Watch()
        changes = {**SIMCLR, "DATA__AUGMENT_BACKEND": backend}
        loop.run(make_task(tmp_path / backend, [losses], **changes))
        found.append(losses.losses)
    assert found[0] == found[1]
    assert len(set(found[0])) > 3
