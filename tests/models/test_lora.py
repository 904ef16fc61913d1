"""A frozen trunk with trained matrices at its layers: in runs, in copies, on ranks, exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.eva import Eva
from torch import Tensor, nn

from sslengine.config.sections import read
from sslengine.engine import loop
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.export.subject import make_subject
from sslengine.export.twins import timm_twin
from sslengine.hooks.events import Hook
from sslengine.methods.step import Step
from sslengine.models.build import build_model
from sslengine.models.frozen import Preservation
from sslengine.models.lora import LoraLinear, add_lora, merge_lora
from sslengine.models.options import LoraOptions, ModelOptions
from sslengine.trained import Trained, find_trained
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engine.runs import train as train_task
from tests.engine.sharded import CROPS, SHARDED, SMALL_VIT, assert_close, needs_shards, run
from tests.engines.runs import make_run
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.methods.test_outside import RUNS
from tests.ranks import RankPool

LORA = {"MODEL__LORA__RANK": 2, "MODEL__LORA__ALPHA": 3.0}
ADAPTED = {**SMALL_VIT, **LORA, "MODEL__PRESERVE__WEIGHT": 0.5}
ALL = LoraOptions(RANK=2, LAYERS=["qkv", "proj", "fc1", "fc2"])
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def adapters(state: dict[str, Tensor]) -> set[str]:
    return {name for name in state if ".lora_" in name}


def test_the_formula() -> None:
    torch.manual_seed(0)
    trunk = nn.ModuleDict({"qkv": nn.Linear(5, 6), "fc": nn.Linear(5, 6)}).double()
    x, layer = torch.randn(3, 5, dtype=torch.float64), trunk["qkv"]
    before = layer(x)
    add_lora(trunk, LoraOptions(RANK=2, ALPHA=3.0, LAYERS=["qkv"]))
    assert torch.equal(layer(x), before)
    assert [name for name, each in trunk.named_parameters() if each.requires_grad] == [
        "qkv.lora_A", "qkv.lora_B",
    ]  # fmt: skip
    nn.init.normal_(layer.lora_B)
    added = 3.0 / 2 * (x @ layer.lora_A.T @ layer.lora_B.T)
    torch.testing.assert_close(layer(x), before + added, rtol=1e-12, atol=1e-12)


def test_a_layer_whose_weight_is_read_is_adapted_too() -> None:
    """EVA's attention adds biases to the product with the weight of `qkv`."""
    network = Eva(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=0)
    add_lora(network, ALL)
    network(IMAGES).square().sum().backward()
    trained = {name for name, each in network.named_parameters() if each.grad is not None}
    assert trained == {name for name, _ in network.named_parameters() if "lora" in name}
    assert "blocks.0.attn.qkv.lora_B" in trained


def test_no_layer_of_that_name() -> None:
    with pytest.raises(ConfigError, match=r"^config.MODEL.LORA.LAYERS: "):
        make_task(Path("never"), [], **{**SMALL_VIT, **LORA, "MODEL__LORA__LAYERS": ["to_q"]})


def test_a_run_changes_what_was_added_alone_also_in_its_teacher(tmp_path: Path) -> None:
    changes = {**RUNS["dino"], **LORA}
    before = make_task(tmp_path, [], **changes).base_model.state_dict()
    task = train_task(tmp_path, [], **changes)
    after = task.base_model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {name for name in adapters(after) if not name.endswith("scale")}
    teacher = task.loss.teacher.module[0].state_dict()
    assert teacher.keys() == after.keys()
    same = {name for name in after if torch.equal(after[name], teacher[name])}
    assert same == after.keys() - moved


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    assert_goes_on_bit_by_bit(tmp_path, **ADAPTED)


def test_recomputed_activations_give_the_same_run(tmp_path: Path) -> None:
    again = {"MODEL__ACTIVATION_CHECKPOINTING__USE_ACTIVATION_CHECKPOINTING": True}
    plain, recomputed = (run(tmp_path, {**ADAPTED, **more}) for more in ({}, again))
    assert_close(recomputed, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "way", [{}, pytest.param(SHARDED, marks=needs_shards)], ids=["DDP", "sharded"]
)
def test_two_ranks_end_where_one_process_does(
    two_ranks: RankPool, tmp_path: Path, way: dict[str, Any]
) -> None:
    alone = run(tmp_path, {**ADAPTED, "OPTIMIZER__num_epochs": 1})
    changes = {**ADAPTED, **way, "OPTIMIZER__num_epochs": 1}
    for each in two_ranks.run(run, tmp_path, changes):
        assert_close(each, alone, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    first, folder = (tmp_path_factory.mktemp(name) for name in ("first", "adapted"))
    with pytest.raises(ConfigError, match=r"^config.MODEL.LORA.RANK: "):
        train(make_run(first, OPTIMIZER__num_epochs=1, **ADAPTED))
    shutil.rmtree(first)
    weights = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(first), "OPTIMIZER__num_epochs": 1}
    assert train(make_run(first, OPTIMIZER__num_epochs=1, **SMALL_VIT))
    assert train(make_run(folder, **ADAPTED, **weights))
    return folder


def test_it_is_exported_under_the_names_of_the_network(adapted: Path) -> None:
    trained = Trained(*find_trained(adapted))
    assert any(isinstance(each, LoraLinear) for each in trained.trunk.modules())
    features = trained.trunk_features(IMAGES)["trunk"]
    subject = make_subject(trained)
    torch.testing.assert_close(subject.compute(IMAGES), features, rtol=1e-5, atol=1e-6)
    assert timm_twin(subject).state.keys() == subject.trunk.state_dict().keys()
    assert not adapters(subject.trunk.state_dict())


@pytest.mark.parametrize("again", [{}, LORA], ids=["plain", "adapted"])
def test_its_weights_start_another_run(
    adapted: Path, tmp_path: Path, again: dict[str, Any]
) -> None:
    expected = Trained(*find_trained(adapted)).trunk_features(IMAGES)["trunk"]
    weights = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(adapted)}
    task = make_task(tmp_path, [], **SMALL_VIT, **again, **weights)
    task.load_initial_weights()
    (found,) = task.base_model.trunk.eval()(IMAGES)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    parameters = dict(task.base_model.trunk.named_parameters())
    assert bool(adapters(parameters)) is bool(again)
    assert not any(each.any() for name, each in parameters.items() if name.endswith("lora_B"))


def test_merging_changes_no_output() -> None:
    from sslengine.config.sections import read
    from sslengine.models.options import ModelOptions
    from tests.config.recipes import resolved

    model = build_model(read(resolved(**SMALL_VIT, **LORA).config, ModelOptions)).double()
    for name, each in model.named_parameters():
        if name.endswith("lora_B"):
            nn.init.normal_(each)
    (before,) = model.trunk(IMAGES.double())
    merge_lora(model.trunk)
    (after,) = model.trunk(IMAGES.double())
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


# ---- What keeps a trunk's features near those of its start


ROWS = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GIVEN = torch.tensor(2.0, dtype=torch.float64)


def made() -> tuple[Any, Preservation]:
    model = build_model(read(resolved(**SMALL_VIT).config, ModelOptions)).double()
    term = Preservation(0.5)
    term.attach(model)
    return model, term.train()


def moved(model: nn.Module) -> None:
    with torch.no_grad():
        for number, each in enumerate(model.parameters()):
            each += 0.05 * torch.sin(torch.arange(each.numel()).view(each.shape) + number)


INPUTS: dict[str, Any] = {
    "rows": ROWS, "views": [ROWS[:3], ROWS[3:]], "inputs": {"global_views": [ROWS], "mask": GIVEN},
}  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
def test_the_term_and_its_gradient_are_those_of_the_formula(kind: str) -> None:
    """Of the first views of the three images."""
    model, term = made()
    first = ROWS[:3]
    with torch.no_grad():
        (start,) = model.trunk(first)
    nothing = term({"loss": GIVEN, "other": GIVEN}, INPUTS[kind], 3, Step.alone())
    torch.testing.assert_close(nothing["loss"], GIVEN, rtol=0, atol=1e-14)
    moved(model.trunk)
    found = term(GIVEN, INPUTS[kind], 3, Step.alone())
    (now,) = model.trunk(first)
    expected: Any = sum(
        1 - (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt()) for a, b in zip(now, start, strict=True)
    )
    close = {"rtol": 1e-10, "atol": 1e-13}
    assert expected > 1e-3
    torch.testing.assert_close(found["preservation"], expected / 3, **close)
    torch.testing.assert_close(found["loss"], 2 + 0.5 * expected / 3, **close)
    (one,) = torch.autograd.grad(found["loss"], [model.trunk.patch_embed.proj.weight])
    (two,) = torch.autograd.grad(expected / 6, [model.trunk.patch_embed.proj.weight])
    torch.testing.assert_close(one, two, **close)


def test_the_start_is_the_weights_that_the_run_starts_from(tmp_path: Path) -> None:
    assert train(make_run(tmp_path / "first", OPTIMIZER__num_epochs=1, **SMALL_VIT))
    weights = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(tmp_path / "first")}
    task = make_task(tmp_path, [], **SMALL_VIT, **weights, MODEL__PRESERVE__WEIGHT=1.0)
    task.load_initial_weights()
    start: dict[str, Tensor] = task.loss.preservation.start.state_dict()
    own = {f"trunk.{name}": each for name, each in task.base_model.trunk.state_dict().items()}
    assert start.keys() == own.keys()
    assert all(torch.equal(start[name], own[name]) for name in own)


class Terms(Hook):
    def on_step(self, task: Any) -> None:
        self.last = task.storage.take_losses()[-1].parts


def test_of_crops_it_resumes_to_the_bit_and_is_logged(tmp_path: Path) -> None:
    head = [["swav_head", {"dims": [18, 7], "use_bn": False, "num_clusters": [5]}]]
    more = {"LOSS": {"name": "swav_loss"}, "MODEL__HEAD__PARAMS": head}
    swav = {**SMALL_VIT, **CROPS, **more, "MODEL__PRESERVE__WEIGHT": 10.0}
    assert_goes_on_bit_by_bit(tmp_path, **swav)
    terms = Terms()
    loop.run(make_task(tmp_path, [terms], **swav))
    assert 0 < 10 * terms.last["preservation"] < terms.last["loss"]
