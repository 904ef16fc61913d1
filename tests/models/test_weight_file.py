"""Files of weights: what is read, what is refused, and the names in those of VISSL."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sslengine.distributed.shard_files import REST
from sslengine.errors import CheckpointError
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.names import read_vissl, write_vissl
from sslengine.models.weights.read import NeedsCodeError, list_files, read_network, read_weights

TENSORS = {"a": torch.arange(3.0), "b.c": torch.ones(2, 2, dtype=torch.float16)}


class Hostile:
    """Loading it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("name", ["weights.torch", "weights.pth", "weights.safetensors"])
def test_tensors_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path)
    read = read_weights(path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[key], TENSORS[key]) for key in TENSORS)
    assert all(read[key].dtype == TENSORS[key].dtype for key in TENSORS)


def test_a_snapshot_in_the_cache_of_a_hub(tmp_path: Path) -> None:
    """Its files are links to names without an ending."""
    for place in ("blobs", "snapshots/abc"):
        (tmp_path / place).mkdir(parents=True)
    save_file(TENSORS, tmp_path / "blobs" / "3571366e")
    (tmp_path / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/3571366e")
    assert read_network(tmp_path / "snapshots" / "abc").keys() == TENSORS.keys()
    assert list_files(tmp_path / "snapshots" / "abc") == [
        tmp_path / "snapshots" / "abc" / "model.safetensors"
    ]


def test_the_index_of_a_large_model(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}))
    for place in (tmp_path, index):
        assert read_network(place).keys() == TENSORS.keys()
    assert list_files(tmp_path) == [tmp_path / f"{name}.safetensors" for name in sorted(TENSORS)]


def test_a_trusted_module_is_its_tensors(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "module.pth")
    assert read_network(tmp_path / "module.pth", trusted=True).keys() == {"weight", "bias"}


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
def test_a_hostile_file_is_refused_by_the_name_of_what_it_holds(tmp_path: Path, form: str) -> None:
    path, mark = tmp_path / "weights.torch", tmp_path / "code_was_run"
    content = {"model": Hostile(mark)}
    if form == "bare":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(NeedsCodeError, match=r"holds an object of posix\.mkdir, .*no code was run"):
        read_weights(path)
    assert not mark.exists()


def test_a_file_of_ones_own_may_run_its_code(tmp_path: Path) -> None:
    """That the mark is made proves that the test above could have seen it."""
    path, mark = tmp_path / "weights.torch", tmp_path / "code_was_run"
    torch.save({"model": Hostile(mark)}, path)
    read_weights(path, trusted=True)
    assert mark.exists()


@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x02}q\x00.", b"\xff" * 64])
def test_damage_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged or no weights file"):
        read_weights(path)


@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors"])
def test_a_pointer_of_git_lfs_is_told(tmp_path: Path, name: str) -> None:
    lines = ["version https://git-lfs.github.com/spec/v1", f"oid sha256:{'0' * 64}", "size 12345\n"]
    (tmp_path / name).write_text("\n".join(lines))
    with pytest.raises(CheckpointError, match=rf"{name} is a pointer of Git LFS. `git lfs pull`"):
        read_weights(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        read_weights(tmp_path / "weights.torch")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors", "a.shards/.metadata"])
def test_what_would_never_end_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    asked = path
    if path.parent != tmp_path:
        asked = path.parent
        torch.save({}, asked / REST)
    with pytest.raises(CheckpointError, match=f"{path.name} is a FIFO: expected a file"):
        read_weights(asked)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{path.name} is a device: expected a file"):
        read_weights(asked)


# ---- vissl names


class Toy(Trunk):
    """Joins two tensors, and gives to one of its own names another meaning."""

    feature_names = ("flatten",)
    vissl_constants = r"index$"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(2, 3), nn.Linear(2, 1)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {}

    def vissl_name(self, name: str) -> str:
        module, _, kind = name.partition(".")
        theirs = {"q": "qk", "k": "qk", "first": "zeroth", "second": "first"}
        return f"_feature_blocks.{theirs[module]}.{kind}"


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_there_and_back() -> None:
    trunk = Toy()
    theirs = write_vissl(trunk)
    assert sorted({name.split(".")[1] for name in theirs}) == ["first", "qk", "zeroth"]
    torch.testing.assert_close(
        theirs["_feature_blocks.qk.weight"], torch.cat([trunk.q.weight, trunk.k.weight])
    )
    assert theirs["_feature_blocks.first.weight"] is not trunk.first.weight
    torch.testing.assert_close(theirs["_feature_blocks.first.weight"], trunk.second.weight)
    assert equal(read_vissl(trunk, theirs), trunk.state_dict())


def test_own_names_are_left_alone() -> None:
    """Also if something is missing: half-renamed it would load what belongs elsewhere."""
    trunk = Toy()
    own = trunk.state_dict()
    assert equal(read_vissl(trunk, own), own)
    del own["q.bias"], own["second.bias"]
    assert equal(read_vissl(trunk, own), own)


def test_what_fits_nowhere_keeps_its_name() -> None:
    trunk = Toy()
    strange = {
        **write_vissl(trunk), "strange.weight": torch.zeros(1),
        "_feature_blocks.qk.weight": torch.zeros(7, 2), "qk.position_index": torch.zeros(2),
    }  # fmt: skip
    back = read_vissl(trunk, strange)
    assert {"strange.weight", "qk.weight"} < back.keys()
    assert not {"q.weight", "k.weight", "qk.position_index"} & back.keys()
    assert "q.bias" in back
