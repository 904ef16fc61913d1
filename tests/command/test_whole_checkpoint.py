from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from sslengine.checkpoint.files import POINTER
from sslengine.command import make
from sslengine.errors import SSLEngineError
from sslengine.models.options import ModelOptions, WeightsInitOptions
from sslengine.models.weights import init_from_file
from tests.engine.runs import make_task
from tests.engine.sharded import SHARDED, SMALL_VIT, assert_close, needs_shards
from tests.integration.test_sharded_resume import ADAM, start
from tests.ranks import RankPool

pytestmark = needs_shards

RUN = {**SMALL_VIT, **ADAM, "DATA__TRAIN__DATA_LIMIT": 24}


def main(arguments: list[str]) -> int:
    return make.main(["whole-checkpoint", *arguments])


@pytest.fixture(scope="module")
def cut(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    two_ranks.run(start, folder, {**RUN, **SHARDED}, 2)
    return folder / "checkpoints"


@pytest.mark.slow
def test_a_run_goes_on_from_the_joined_file(cut: Path, tmp_path: Path) -> None:
    """In the place of the shards: it is what a plain run would have left."""
    checkpoints = tmp_path / "run" / "checkpoints"
    main([str(cut / POINTER), "--out", str(checkpoints / "model_iteration2.torch")])
    manifest = (cut / "model_iteration2.shards.json").read_text()
    assert "model_iteration2.shards" in manifest
    state = torch.load(checkpoints / "model_iteration2.torch", weights_only=True)
    assert state["classy_state_dict"]["optimizer"]["state"]
    plain = start(tmp_path / "plain", RUN)
    task = make_task(tmp_path / "again", [], **RUN, DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    task.set_classy_state(state["classy_state_dict"])
    assert task.iteration == 2
    shutil.copytree(cut, tmp_path / "shards" / "checkpoints", symlinks=True)
    rest = start(tmp_path / "shards", RUN)
    assert_close(rest, plain._replace(losses=plain.losses[2:]), rtol=1e-4, atol=1e-6)


def test_weights_to_start_from(cut: Path, tmp_path: Path) -> None:
    """Out of the folder and out of the file, by WEIGHTS_INIT: as the engines read them."""
    main([str(cut / POINTER), "--out", str(tmp_path / "w.torch"), "--weights-only"])
    state = torch.load(tmp_path / "w.torch", weights_only=True)["classy_state_dict"]
    assert "optimizer" not in state
    for file in (tmp_path / "w.torch", cut / POINTER, cut / "model_iteration2.shards"):
        model = make_task(tmp_path, [], **RUN).base_model
        options = ModelOptions(WEIGHTS_INIT=WeightsInitOptions(PARAMS_FILE=str(file)))
        assert init_from_file(model, options).trunk > 20
        for name, value in state["base_model"]["model"]["trunk"].items():
            assert torch.equal(model.trunk.state_dict()[name], value)


def test_what_a_user_can_get_wrong(cut: Path, tmp_path: Path) -> None:
    (tmp_path / "there.torch").write_bytes(b"mine")
    with pytest.raises(SSLEngineError, match="exists; it is not overwritten"):
        main([str(cut / POINTER), "--out", str(tmp_path / "there.torch")])
    with pytest.raises(SSLEngineError, match="is not a sharded checkpoint"):
        main([str(tmp_path / "there.torch"), "--out", str(tmp_path / "x.torch")])
    broken = tmp_path / "model_iteration2.shards"
    shutil.copytree(cut / broken.name, broken)
    shutil.copy(cut / f"{broken.name}.json", tmp_path)
    (broken / "__1_0.distcp").unlink()
    with pytest.raises(SSLEngineError, match="__1_0.distcp"):
        main([str(broken), "--out", str(tmp_path / "x.torch")])
    assert not (tmp_path / "x.torch").exists()
