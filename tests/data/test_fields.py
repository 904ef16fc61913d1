"""FIELDS: further values of an image, from each kind of source to the batch of a method."""

from __future__ import annotations

import importlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, HoldOut, split_options
from sslengine.distributed.ranks import rank
from sslengine.errors import DataError
from sslengine.methods.whole import Batch
from sslengine.python.fit import fit
from tests.data.pictures import picture
from tests.data.sources.every import COUNT, names
from tests.data.sources.test_tar import png, write_shard
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.python.toys import sgd
from tests.ranks import RankPool

VIEWS = [{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"}]
HOLED = 5  # the image without a caption


def caption(number: int) -> str:
    return f"números {number}"


def vector(number: int) -> list[float]:
    return [number / 4, 1.0]


def seg(number: int) -> bytes:
    file = BytesIO()
    picture(number).convert("L").save(file, "PNG")
    return file.getvalue()


def table(root: Path, ending: str, holed: bool = False) -> dict[str, Any]:
    captions: list[str | None] = [caption(number) for number in range(COUNT)]
    if holed:
        captions[HOLED] = None
    columns = {"path": names(root), "caption": captions, "n": list(range(COUNT)),
               "vector": [vector(number) for number in range(COUNT)]}  # fmt: skip
    if ending == "parquet":
        arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.table(columns), root / "list.parquet")
    else:
        del columns["vector"]
        rows = [columns, *zip(*columns.values())]
        text = "\n".join(",".join(map(str, each)) for each in rows)
        (root / "list.csv").write_text(text)
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / f"list.{ending}")]}


def shards(root: Path, holed: bool = False) -> dict[str, Any]:
    for shard in range(2):
        members = {}
        for number in range(shard * COUNT // 2, (shard + 1) * COUNT // 2):
            array = BytesIO()
            np.save(array, np.array(vector(number), np.float32))
            told = (
                {"n": number}
                if holed and number == HOLED
                else {"n": number, "caption": caption(number)}
            )
            members |= {f"{number:02}.seg.png": seg(number), f"{number:02}.png": png(number),
                        f"{number:02}.json": json.dumps(told).encode(),
                        f"{number:02}.vector.npy": array.getvalue()}  # fmt: skip
        write_shard(root / "shards" / f"{shard}.tar", members)
    return {"DATA_SOURCES": ["webdataset"], "DATA_PATHS": [str(root / "shards")]}


def hugging_face(root: Path) -> dict[str, Any]:
    datasets: Any = pytest.importorskip("datasets", reason="makes its data sets")
    kinds = {"image": datasets.Image(), "seg": datasets.Image()}
    image = {name: [{"bytes": make(number), "path": None} for number in range(COUNT)]
             for name, make in (("image", png), ("seg", seg))}  # fmt: skip
    rows = datasets.Dataset.from_dict(
        {**image, "caption": [caption(number) for number in range(COUNT)], "n": list(range(COUNT)),
         "vector": [vector(number) for number in range(COUNT)]}
    )  # fmt: skip
    for name, kind in kinds.items():
        rows = rows.cast_column(name, kind)
    rows.to_parquet(str(root / "rows.parquet"))
    columns = {"IMAGE_COLUMN": "image", "DATA_PATHS": [str(root / "rows.parquet")]}
    return {"DATA_SOURCES": ["huggingface_dataset"], **columns}


def stream(keys: dict[str, Any]) -> dict[str, Any]:
    source = {"webdataset": "webdataset_stream"}.get(keys["DATA_SOURCES"][0], "huggingface_stream")
    return {**keys, "DATA_SOURCES": [source], "LENGTH": COUNT}


def feed(keys: dict[str, Any], fields: list[str], workers: int = 0, **more: Any) -> DataFeed:
    training = more.pop("training", True)
    data = DataOptions(
        TRAIN=split_options(
            LABEL_TYPE="zero", FIELDS=fields, BATCHSIZE_PER_REPLICA=4, TRANSFORMS=VIEWS,
            COLLATE_FUNCTION="multicrop_collator", **keys,
        ),
        NUM_DATALOADER_WORKERS=workers, **more,
    )  # fmt: skip
    return DataFeed(data, "TRAIN", training=training, seed=0)


SOURCES: dict[str, Any] = {
    "csv": (lambda root: table(root, "csv"), ["caption", "n"]),
    "parquet": (lambda root: table(root, "parquet"), ["caption", "n", "vector"]),
    "tar": (shards, ["caption", "n", "vector.npy", "seg.png"]),
    "tar stream": (lambda root: stream(shards(root)), ["caption", "n", "vector.npy", "seg.png"]),
    "hub": (hugging_face, ["caption", "n", "vector", "seg"]),
    "hub stream": (lambda root: stream(hugging_face(root)), ["caption", "n", "vector", "seg"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")
@pytest.mark.parametrize("source", SOURCES)
def test_each_image_comes_with_its_own(source: str, tmp_path: Path) -> None:
    """Past the views, an entry an image: text in a list, numbers and arrays in a tensor."""
    make, fields = SOURCES[source]
    opened = feed(make(tmp_path), fields)
    seen = []
    for given in opened.batches():
        batch = Batch(
            {"input": given["data"][0], **{key: values[0] for key, values in given.items()}}
        )
        found = batch["n"].tolist()
        seen += found
        assert [len(view) for view in batch.views] == [len(found)] * 2
        assert batch["caption"] == [caption(number) for number in found]
        for number, view in zip(found, batch.views[1]):
            assert torch.equal((view * 255).byte(), _pixels(picture(number)))
        for name in fields[2:3]:
            assert torch.equal(batch[name], torch.tensor([vector(number) for number in found]))
        for name in fields[3:]:
            masks = torch.stack([_pixels(picture(number).convert("L")) for number in found])
            assert torch.equal(batch[name], masks)
    assert sorted(seen) == list(range(COUNT))
    opened.close()


def _pixels(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(np.atleast_3d(np.asarray(image)), -1, 0).copy())


def test_workers_and_a_resume_within_the_epoch_give_the_same(tmp_path: Path) -> None:
    keys, fields = shards(tmp_path), ["caption", "seg.png"]
    alone, others = feed(keys, fields), feed(keys, fields, workers=2)
    whole = list(alone.batches())
    later = list(others.batches(first_step=3))
    for one, two in zip(whole[3:], later, strict=True):
        assert one["caption"] == two["caption"]
        assert torch.equal(one["seg.png"][0], two["seg.png"][0])
        assert one["fields"] == two["fields"] == [("caption", "seg.png")]
    alone.close()
    others.close()


def test_an_image_without_one_is_an_error_of_a_table_and_unreadable_in_a_shard(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN\.FIELDS"):
        feed(table(tmp_path, "parquet", holed=True), ["caption"])
    opened = feed(shards(tmp_path, holed=True), ["caption", "n"])
    captions = [each for batch in opened.batches() for each in batch["caption"][0]]
    assert opened.unreadable == {HOLED}
    assert (caption(HOLED) in captions, len(captions)) == (False, COUNT)
    tested = feed(shards(tmp_path, holed=True), ["caption", "n"], training=False)
    numbers = [int(each) for batch in tested.batches() for each in batch["n"][0]]
    assert numbers == [each for each in range(COUNT) if each != HOLED]


@pytest.mark.parametrize("source", ["shapes", "synthetic", "csv", "tar", "hub", "hub stream"])
def test_one_that_the_source_has_not_is_an_error_before_training(
    source: str, tmp_path: Path
) -> None:
    keys = SOURCES[source][0](tmp_path) if source in SOURCES else {"DATA_SOURCES": [source]}
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN\.FIELDS"):
        feed(keys, ["nothing"])


def test_another_of_the_batch_keeps_its_name() -> None:
    masked = split_options(
        DATA_SOURCES=["shapes"], DATA_LIMIT=4, LABEL_TYPE="zero", FIELDS=["caption"], BATCHSIZE_PER_REPLICA=2,
        COLLATE_FUNCTION=f"{__name__}:captioned",
    )  # fmt: skip
    data = DataOptions(TRAIN=masked, NUM_DATALOADER_WORKERS=0)
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN\.FIELDS"):
        next(DataFeed(data, "TRAIN", training=True, seed=0).batches())


def captioned(samples: Any) -> dict[str, Any]:
    return {"data": [torch.zeros(len(samples), 3)], "caption": [torch.zeros(len(samples))]}


def test_a_held_out_part_has_them_too(tmp_path: Path) -> None:
    keys = table(tmp_path, "csv")
    kept = feed(keys, ["caption"], HOLD_OUT=HoldOut(SHARE=0.25))
    for batch in kept.batches():
        found = [caption(int(kept.dataset.rows[int(each)])) for each in batch["data_idx"][0][:4]]
        assert batch["caption"] == [found]


CHANGES: dict[str, Any] = {
    "DATA__TRAIN__DATA_SOURCES": ["shapes"], "DATA__TRAIN__LABEL_SOURCES": [],
    "DATA__TRAIN__LABEL_TYPE": "zero", "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 16,
    "DATA__TRAIN__FIELDS": ["caption", "caption_vector"],
    "LOSS": {"name": f"{__name__}:SeenBy"},
}  # fmt: skip


class SeenBy(torch.nn.Module):
    """A loss of the first form."""

    def forward(self, output: torch.Tensor, sample: dict[str, Any], step: Any) -> torch.Tensor:
        captions, vectors = sample["caption"], sample["caption_vector"]
        assert [("bright" in each) for each in captions] == vectors[:, -1].bool().tolist()
        return (output.chunk(2)[0].mean(dim=1) - vectors.sum(dim=1)).square().mean()


def _trained(folder: Path) -> None:
    assert_goes_on_bit_by_bit(folder / str(rank()), **CHANGES)


def test_a_run_on_two_ranks_reads_them_and_resumes(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_trained, tmp_path)


class Captioned:
    """A dataset of dicts, as `fit` takes it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"data": torch.full((3,), float(index)), "label": index % 2, "caption": f"c{index}",
                "n": index}  # fmt: skip


def test_fit_takes_them_from_the_dicts_of_a_dataset() -> None:
    seen: list[str] = []

    def loss(output: Any, sample: dict[str, Any], step: Any) -> torch.Tensor:
        batch = Batch(sample)
        assert batch["caption"] == [f"c{each}" for each in batch["n"].tolist()]
        seen.extend(batch["caption"])
        return output.square().mean()

    model = torch.nn.Linear(3, 2)
    how = {"epochs": 1, "batch_size": 4, "device": "cpu", "quiet": True}
    fit(model, Captioned(), loss=loss, optimizer=sgd(model), **how)
    assert sorted(seen) == [f"c{each}" for each in range(8)]


def test_a_method_that_reads_none_is_told_what_there_is() -> None:
    batch = Batch({"input": [torch.zeros(2, 3)], "target": None})
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN\.FIELDS"):
        batch["caption"]
