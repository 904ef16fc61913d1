"""The examples of docs/data_sources.md, each opened and read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import HoldOut, split_options
from tests.data.pictures import picture, write_tree
from tests.data.sources.test_tar import png, write_shard
from tests.data.sources.videos import write_lossless

DOC = (Path(__file__).resolve().parents[3] / "docs" / "data_sources.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_tree(root / "train", "a/0.png", "a/1.png", "b/2.png", "b/3.png")
    files = sorted(map(str, (root / "train").rglob("*.png")))
    np.save(root / "images.npy", np.array(files))
    np.save(root / "labels.npy", np.array([0, 0, 1, 1]))
    rows = [f"{name},{Path(name).parent.name}" for name in files]
    (root / "images.csv").write_text("\n".join(["path,species", *rows]))
    tags = [f"{name},{'cat|dog' if number < 2 else 'cat'}" for number, name in enumerate(files)]
    (root / "tags.csv").write_text("\n".join(["path,tags", *tags]))
    told = [f"{name},a photo of {number},{number}" for number, name in enumerate(files)]
    (root / "captions.csv").write_text("\n".join(["path,caption,rating", *told]))
    findings = [f"{name},1.0,{'' if number < 2 else '0.0'}" for number, name in enumerate(files)]
    (root / "findings.csv").write_text("\n".join(["Path,Edema,Pleural Effusion", *findings]))
    for shard in range(2):
        members = {}
        for number in (2 * shard, 2 * shard + 1):
            members |= {f"{number}.png": png(number), f"{number}.cls": b"%d" % shard}
        write_shard(root / "shards" / f"train-{shard:03}.tar", members)
    boxes = [{"path": name, "bbox": [0, 0, 8, 8]} for name in files]
    (root / "boxes.json").write_text(json.dumps(boxes))
    pictures = np.stack([picture(number) for number in range(4)])
    np.savez(root / "images.npz", images=pictures, labels=np.array([0, 0, 1, 1]))
    (root / "bands").mkdir()
    for number in range(4):
        np.save(root / "bands" / f"{number}.npy", np.full((9, 9, 6), number, np.uint16))
    return root


def hugging_face(path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets", reason="makes its data sets")
    images = [{"bytes": png(number), "path": None} for number in range(4)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    columns = {"image": images, "label": [0, 0, 1, 1]}
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    rows.save_to_disk(str(path))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: "+".join(each["DATA_SOURCES"]))
def test_it_opens_and_gives_images_with_their_labels(example: dict[str, Any], data: Path) -> None:
    if example["DATA_SOURCES"] == ["huggingface_dataset"]:
        hugging_face(data / "birds")
    if example["DATA_SOURCES"] == ["video"]:
        for number in range(4):
            file = data / "clips" / "ab"[number // 2] / f"{number}.mov"
            write_lossless(file, [picture(number)] * 5)
    keys = json.loads(json.dumps(example).replace('"/data/', f'"{data}/'))
    if example["DATA_SOURCES"] == ["webdataset_stream"]:
        keys |= {"DATA_PATHS": [f"{data}/shards/train-{{000..001}}.tar"], "LENGTH": 4}
    options = split_options(**keys)
    assert list(options.check()) == []
    found = SSLDataset(options, "TRAIN", 0)
    samples = [found[0, index] for index in range(len(found))]
    images_each = len(samples[0]["data"])
    assert [sample["data_valid"] for sample in samples] == [[1] * images_each] * 4
    if "LABEL_SEPARATOR" in example:
        rows = [sample["label"][0].tolist() for sample in samples]
        assert rows == [[1, 1], [1, 1], [1, 0], [1, 0]]
    elif "LABEL_COLUMNS" in example:
        rows = [sample["label"][0].tolist() for sample in samples]
        assert rows == [[1, -1], [1, -1], [1, 0], [1, 0]]
    elif "LABEL_SOURCES" in example:
        assert [sample["label"] for sample in samples] == [[0], [0], [1], [1]]
    if "FIELDS" in example:
        fields: list[Any] = [sample["fields"] for sample in samples]
        assert [each["caption"] for each in fields] == [f"a photo of {n}" for n in range(4)]
        assert [int(each["rating"]) for each in fields] == [0, 1, 2, 3]
    if "IMAGE_MODE" in example:
        assert images_each == 2  # views
        for number, sample in enumerate(samples):
            assert {view.shape for view in sample["data"]} == {(6, 8, 8)}
            for view in sample["data"]:
                torch.testing.assert_close(view, torch.full((6, 8, 8), float(number)))
    else:
        images = [sample["data"][0].tobytes() for sample in samples]
        expected = [picture(number).tobytes() for number in range(4)]
        assert images == expected or (found.stream and sorted(images) == sorted(expected))


def test_every_source_of_files_has_an_example() -> None:
    shown = {name for example in EXAMPLES for name in example["DATA_SOURCES"]}
    assert {
        "disk_folder", "disk_filelist", "csv_filelist", "webdataset", "array_file", "huggingface_dataset",
        "disk_roi_annotations", "video", "webdataset_stream",
    } == shown  # fmt: skip


def test_the_keys_that_it_names_are_there() -> None:
    named = set(re.findall(r"`([A-Z][A-Z_]{4,})[`:]", DOC))
    known = set(vars(split_options())) | set(vars(HoldOut())) | {"TRAIN", "TEST", "INPUT_CHANNELS"}
    assert named - known == set()
