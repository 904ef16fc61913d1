"""The benchmark of the device's part of augmentation measures what its rows say."""

from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.augment.backends.device.run import run
from tools.perf_measurement import bench_device_augment as bench


@pytest.mark.parametrize("name", bench.ROWS)
def test_both_sides_of_a_row_make_the_same(name: str) -> None:
    images = bench.pictures(3, 16)
    programs = [bench.ROWS[name]() for _ in images]
    todo, pixels = bench.prepared(images, programs, bench.CPU)
    run(todo, pixels)
    for image, program, made in zip(images, programs, pixels, strict=True):
        for op in program:
            image = op.on_pil(image)
        assert (np.asarray(image) == made.permute(1, 2, 0).numpy()).all()


def test_rows_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--views", "2", "--side", "16", "--rounds", "1", "--device", "cpu"]) == 0
    *lines, host = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(bench.ROWS)
    assert all(float(figure) > 0 for line in lines[2:] for figure in line.split()[1:])
    assert host.startswith("the host reads and groups what is to be done in ")
