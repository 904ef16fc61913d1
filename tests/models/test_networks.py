"""Student or teacher: which network is judged, exported and asked, by method and by choice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.engine.build import build_base_model
from sslengine.engines.evaluate import evaluate
from sslengine.engines.features import extract_features
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.methods.moco import MoCoLoss, MoCoOptions
from sslengine.models.weights.state import choose, networks_of
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_json, as_text
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.methods.test_byol import RECIPE as BYOL
from tests.methods.test_dino import RESNET as DINO
from tests.methods.test_moco import RECIPE as MOCO

Content = dict[str, Any]
# Fast teachers: after a few steps neither network is what it was, nor are they the same.
METHODS: dict[str, tuple[dict[str, Any], str, str]] = {
    "dino": (DINO, "momentum_teacher.module", "teacher"),
    "byol": (BYOL, "teacher.module", "student"),
    "moco": (MOCO, "key_encoder.module", "student"),
}
FEW = {**SHAPES, "DATA__TRAIN__DATA_LIMIT": 24}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method, in a folder of its name."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (recipe, _, _) in METHODS.items():
        run = make_run(folder / name, **FEW, **recipe)
        run.describe()
        train(run)
    return folder


def _content(run: Path) -> Content:
    file = run / "checkpoints" / "checkpoint.torch"
    state: Content = torch.load(file, weights_only=True)["classy_state_dict"]
    return state


def _trunk_of(state: Content, part: str, network: str) -> dict[str, Tensor]:
    """By hand, from the layout of a checkpoint."""
    if network == "student":
        trunk: dict[str, Tensor] = state["base_model"]["model"]["trunk"]
        return trunk
    prefix = f"{part}.trunk."
    return {n.removeprefix(prefix): t for n, t in state["loss"].items() if n.startswith(prefix)}


def _features(runs: Path, method: str, network: str, images: Tensor) -> Tensor:
    model: Any = build_base_model(resolved().config, torch.device("cpu"))
    model.trunk.load_state_dict(_trunk_of(_content(runs / method), METHODS[method][1], network))
    with torch.no_grad():
        features: Tensor = model.eval().trunk(images)[0].flatten(1)
    return features


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_report_names_the_network_that_the_method_is_judged_by(runs: Path, method: str) -> None:
    _, _, judged = METHODS[method]
    run = make_run(runs / method, "evaluate", **FROZEN)
    evaluate(run)
    assert json.loads((runs / method / "evaluation.json").read_text())["network"] == judged
    assert f"network     {judged}" in screen(run)


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("dino", "auto"),
        ("dino", "student"),
        ("byol", "auto"),
        ("moco", "auto"),
        ("moco", "teacher"),
    ],
)
def test_features_are_of_that_network(runs: Path, tmp_path: Path, method: str, asked: str) -> None:
    expected = METHODS[method][2] if asked == "auto" else asked
    file = runs / method / "checkpoints" / "checkpoint.torch"
    choice = {"PARAMS_FILE": str(file), "NETWORK": asked}
    run = make_run(tmp_path, "extract_features", **FROZEN, MODEL__WEIGHTS_INIT=choice)
    extract_features(run)
    found = np.load(tmp_path / "features" / "rank0_chunk0_train_flatten_features.npy")
    assert f"checkpoint.torch ({expected})" in screen(run)
    images = SSLDataset(read(run.config, DataOptions).TRAIN, "TRAIN", 0)
    batch = torch.stack([images[(0, i)]["data"][0] for i in range(4)])
    by_network = {each: _features(runs, method, each, batch) for each in ("student", "teacher")}
    got = torch.from_numpy(found[:4])
    torch.testing.assert_close(got, by_network.pop(expected), rtol=1e-4, atol=1e-5)
    (other,) = by_network.values()
    assert not torch.allclose(got, other, rtol=1e-3, atol=1e-4)


# The teacher's name in older checkpoints.
OLDER = {"dino": "momentum_teacher.module", "byol": "teacher", "moco": "key_encoder"}


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_teacher_in_an_older_checkpoint(runs: Path, method: str, says: bool) -> None:
    """It says where the teacher is, or it is recognised by its names, as VISSL's is."""
    state = _content(runs / method)
    _, part, judged = METHODS[method]
    assert state.pop("networks") == {"teacher": part, "judged": judged}
    older = OLDER[method]
    state["loss"] = {name.replace(f"{part}.", f"{older}.", 1): each
                     for name, each in state["loss"].items()}  # fmt: skip
    part = older
    if says:
        state["networks"] = {"teacher": part, "judged": judged}
    assert choose(state, "auto", "file")[1] == judged
    chosen, name = choose(state, "teacher", "file")
    assert name == "teacher"
    expected = _trunk_of(state, part, "teacher")
    trunk = chosen["base_model"]["model"]["trunk"]
    assert trunk.keys() == expected.keys() == state["base_model"]["model"]["trunk"].keys()
    assert all(torch.equal(trunk[each], expected[each]) for each in expected)
    assert set(chosen["base_model"]["model"]) == {"trunk", "heads"}


def test_a_method_with_other_names_says_so_when_it_is_resumed(runs: Path, tmp_path: Path) -> None:
    state = _content(runs / "byol")
    loss = state["loss"]
    state["loss"] = {name.replace("teacher.module.", "teacher."): loss[name] for name in loss}
    task = make_task(tmp_path, [], **FEW, **BYOL)
    with pytest.raises(
        CheckpointError, match=r"the loss's state .* missing teacher.module.*\.\.\."
    ):
        task.set_classy_state(state)
    task.close()


def test_the_predictor_asks_the_same_network_and_says_so(runs: Path) -> None:
    picture = Image.new("RGB", (16, 16), (200, 30, 90))
    found = {}
    for asked in ("auto", "teacher", "student"):
        predictor = Predictor(runs / "dino", network=asked, nearest=1, device="cpu")
        name = "student" if asked == "student" else "teacher"
        found[asked] = predictor(picture)
        assert as_json(predictor, {})["network"] == name
        assert f"network     {name}" in as_text(predictor, {})
        batch = predictor.view(picture)[None]
        expected = _features(runs, "dino", name, batch)[0]
        torch.testing.assert_close(found[asked].features, expected, rtol=1e-4, atol=1e-5)
    # The index of training features is that of the network: it was made again.
    assert found["teacher"].nearest[0].similarity != found["student"].nearest[0].similarity


def test_a_file_without_a_teacher(runs: Path) -> None:
    plain = {"trunk.weight": torch.zeros(1)}
    assert choose(plain, "auto", "file") == (plain, "model")
    assert choose(plain, "student", "file") == (plain, "model")
    with pytest.raises(CheckpointError, match=r"NETWORK: x\.torch contains no teacher"):
        choose(plain, "teacher", "x.torch")


@pytest.mark.parametrize("wrong", ["techer", "Teacher"])
def test_a_network_of_python_that_does_not_exist(runs: Path, wrong: str) -> None:
    """It was taken for the student."""
    told = f"network: expected auto, student or teacher; got '{wrong}'. Did you mean 'teacher'?"
    with pytest.raises(ConfigError, match=re.escape(told)):
        Predictor(runs / "dino", network=wrong, nearest=0, device="cpu")
    with pytest.raises(ConfigError, match=re.escape(told)):
        choose({"trunk.weight": torch.zeros(1)}, wrong, "file")


def test_a_method_must_have_what_it_says() -> None:
    class Lost(MoCoLoss):
        teacher_part = "nowhere"

    loss = Lost(MoCoOptions(embedding_dim=2, queue_size=4), RunFacts())
    with pytest.raises(ConfigError, match="Lost: teacher_part must name a submodule"):
        networks_of(loss)
    assert networks_of(nn.CrossEntropyLoss()) == {}
