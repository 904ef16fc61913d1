"""Checkpoints out of these: tests/checkpoint/test_sharded.py."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, TensorProperties

from sslengine.checkpoint.snapshot import copy_to_host
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.shard_files import (
    METADATA,
    REST,
    Peers,
    _metadata,
    is_folder_of_shards,
    read_folder,
    split,
    write_folder,
)  # fmt: skip
from sslengine.distributed.sharding import is_sharded, local, make_dtensor, mesh_of, whole
from sslengine.errors import CheckpointError
from tests.ranks import RankPool

CPU = torch.device("cpu")


def rows(count: int, width: int = 3) -> Tensor:
    return torch.arange(float(count * width)).view(count, width)


def cut(value: Tensor) -> Tensor:
    """Of this rank."""
    chunks = value.chunk(world_size())
    mine = chunks[rank()] if rank() < len(chunks) else value[:0]
    return make_dtensor(mine.clone(), value.shape, value.stride(), mesh_of(CPU))


def state() -> dict[str, Any]:
    shared = cut(rows(5))
    return {
        "model": {"a.weight": shared, "b": cut(rows(1)), "steps": torch.tensor(3)},
        "optimizer": {"state": {0: {"m": cut(rows(7).double())}}, "groups": [{"lr": 0.1}]},
        "again": [shared, "text", None],
    }


def _save(folder: Path) -> list[str]:
    peers = Peers()
    if rank() == 0:
        folder.mkdir()
    peers.agree(lambda: None)
    return write_folder(folder, *split(copy_to_host(state())), peers)


def _read(folder: Path) -> tuple[Tensor, Tensor, Tensor, int, bool]:
    got = read_folder(folder, Peers())
    weight, moment = got["model"]["a.weight"], got["optimizer"]["state"][0]["m"]
    return (
        whole(weight), whole(got["model"]["b"]), whole(moment), local(moment).shape[0],
        is_sharded(weight) and got["again"][0] is weight,
    )  # fmt: skip


@pytest.fixture(scope="module")
def saved(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "x.shards"
    names = two_ranks.run(_save, folder)
    assert names == [["__0_0.distcp", REST, METADATA], ["__1_0.distcp"]]
    return folder


def test_read_whole_by_one_process(saved: Path) -> None:
    assert is_folder_of_shards(saved)
    got = read_folder(saved)
    assert torch.equal(got["model"]["a.weight"], rows(5))
    assert got["again"][0] is got["model"]["a.weight"]
    assert torch.equal(got["model"]["b"], rows(1))
    assert torch.equal(got["optimizer"]["state"][0]["m"], rows(7).double())
    assert got["model"]["steps"] == 3
    assert got["optimizer"]["groups"] == [{"lr": 0.1}]
    assert got["again"][1:] == ["text", None]
    assert not isinstance(got["again"][0], type(None))


def test_what_is_left_out_is_not_read(saved: Path) -> None:
    assert set(read_folder(saved, without=("optimizer",))) == {"model", "again"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_read_in_shards(saved: Path, two_ranks: RankPool, four_ranks: RankPool, ranks: int) -> None:
    results = (two_ranks if ranks == 2 else four_ranks).run(_read, saved)
    for weight, single, moment, _, in_shards in results:
        assert torch.equal(weight, rows(5))
        assert torch.equal(single, rows(1))
        assert torch.equal(moment, rows(7).double())
        assert in_shards
    assert [held for *_, held, _ in results] == ([4, 3] if ranks == 2 else [2, 2, 2, 1])


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


class Attribute:
    """Written as Python 3.11.0 to 3.11.3 write a member of an Enum."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


def test_members_of_an_enum_are_records_and_other_attributes_are_not(tmp_path: Path) -> None:
    def read(value: Any) -> Any:
        (tmp_path / METADATA).write_bytes(pickle.dumps(value))
        return _metadata(tmp_path)

    member = _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST
    assert read(member) is read(Attribute(_MEM_FORMAT_ENCODING, member.name)) is member
    for of, name in ((_MEM_FORMAT_ENCODING, "__subclasses__"), (TensorProperties, "__init__")):
        with pytest.raises(
            CheckpointError, match=f"contains '{name}' of .*No code from the file was run"
        ):
            read(Attribute(of, name))


def test_records_that_are_code_are_not_run(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hostile.shards"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    content = io.BytesIO()
    pickle.dump(Hostile(), content)
    (folder / METADATA).write_bytes(content.getvalue())
    with pytest.raises(
        CheckpointError, match=r"contains posix\.system.*No code from the file was run"
    ):
        read_folder(folder)
    assert not Path("hostile").exists()


def _agree() -> list[str]:
    peers = Peers()

    def fails() -> None:
        if rank() == 1:
            raise OSError(28, "No space left on device")

    said = [str(peers.agree(rank)), str(peers.agree(lambda: "first", everyone=False))]
    try:
        peers.agree(fails)
    except CheckpointError as error:
        said.append(str(error))
    return said


def test_one_that_cannot_is_heard_by_all(two_ranks: RankPool) -> None:
    told = ["[0, 1]", "['first', None]", "No space left on device (rank 1)"]
    assert two_ranks.run(_agree) == [told, told]
