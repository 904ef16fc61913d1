from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

from sslengine.data.loading import current_sample
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from tests.data.pictures import write_tree


@pytest.fixture(autouse=True)
def own_place() -> Iterator[None]:
    before = current_sample._mine
    yield
    current_sample._mine = before


def work(places: torch.Tensor) -> None:
    current_sample.note_in(places, 2)
    current_sample.note(17)


def test_another_process_notes_in_its_place() -> None:
    places = current_sample.table(3)
    context = torch.multiprocessing.get_context("fork")
    process = context.Process(target=work, args=(places,))
    process.start()
    process.join(120)
    assert places.tolist() == [-1, -1, 17]


def test_a_data_set_notes_what_it_reads(tmp_path: Path) -> None:
    places = current_sample.table(1)
    seen = []

    class Note:
        def __call__(self, image: object) -> object:
            seen.append(places.item())
            return image

    options = SplitOptions(
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(write_tree(tmp_path, "0.png", "1.png", "2.png"))],
        LABEL_TYPE="zero",
    )
    data = SSLDataset(options, "TRAIN", 0)
    data.pipeline.steps.insert(
        0, type("Step", (), {"__call__": lambda _, sample: Note()(sample)})()
    )
    current_sample.note_in(places, 0)
    data.__getitems__([(0, 2), (0, 1)])
    assert seen == [2, 1]
    assert places.item() == current_sample.NONE


def test_without_a_place_nothing_is_noted_anywhere() -> None:
    current_sample.note(3)
    current_sample.note()
