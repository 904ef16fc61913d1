"""Sharded training (FSDP) beside plain training: the same losses, the same final weights.

docs/sharding.md has a row for each combination that is tested here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.contrib.diagnostics import TensorBoardHistograms
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.errors import ConfigError
from sslengine.hooks.collapse import LogCollapse
from sslengine.models.weights.state import vissl_state
from sslengine.monitor.writers import RunPlace, TensorBoardWriter
from tests.engine.runs import Watch, make_task
from tests.engine.sharded import (
    CROPS,
    SHARDED,
    SMALL_VIT,
    SYNC_BN,
    Outcome,
    assert_close,
    needs_shards,
    on_ranks,
    outcome,
    run,
)  # fmt: skip
from tests.methods.test_dinov3 import of_run
from tests.ranks import RankPool
from tests.tail import slow_but

pytestmark = needs_shards
ADAM = {"OPTIMIZER__name": "adamw", "OPTIMIZER__param_schedulers__lr__start_value": 0.001}
ONE_EPOCH = {"OPTIMIZER__num_epochs": 1}
PREDICTOR = [["predictor_head", {"dims": [18, 8], "predictor_dims": [8, 6, 8], "use_bn": False}]]

# Without batch norm, so that one process and several compute the same up to rounding.
LOSSES: dict[str, dict[str, Any]] = {
    "dino": {
        **CROPS,
        "MODEL__HEAD__PARAMS": [["dino_head", {"in_dim": 18, "num_clusters": [10],
                                               "hidden_dim": 12, "bottleneck_dim": 6}]],
        "LOSS__name": "dino_loss",
        "LOSS__dino_loss__momentum": 0.8,
        "LOSS__dino_loss__teacher_temp_warmup_iters": 3,
    },
    "byol": {
        "LOSS__name": "byol_loss",
        "LOSS__byol_loss__momentum": 0.8,
        "MODEL__HEAD__PARAMS": PREDICTOR,
    },
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw": ADAM,
    "larc": {"OPTIMIZER__use_larc": True},
    "lars": {"OPTIMIZER__name": "lars", "OPTIMIZER__exclude_bias_and_norm": True},
    "clip": {"MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True, "MAX_NORM": 0.05}},
    "clip to the largest": {
        "MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True, "MAX_NORM": 0.01, "NORM_TYPE": "inf"}
    },
    "clip each": {
        "MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True, "MAX_NORM": 0.01, "PER_PARAMETER": True}
    },
    "clip modules": {
        "MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True, "MAX_NORM": 0.01, "PER_MODULE": True}
    },
    "multipliers": {**ADAM, "OPTIMIZER__multipliers": [{"match": "trunk.patch_embed.*", "lr": 0.2}]},
    "accumulate": {"OPTIMIZER__accumulate": 2, "DATA__TRAIN__DATA_LIMIT": 32},
    "activation checkpointing": {
        "MODEL__ACTIVATION_CHECKPOINTING": {"USE_ACTIVATION_CHECKPOINTING": True}
    },
    "gradcache": {"TRAINER__TRAIN_STEP_NAME": "gradcache_train_step",
                  "TRAINER__gradcache_train_step": {"CHUNK_SIZE": 3}},
    "groups by name": {**ADAM, "OPTIMIZER__param_group_constructor": "dino"},
    "frozen for a while": {"MODEL__TEMP_FROZEN_PARAMS_ITER_MAP": [["heads.0.clf.0.weight", 1]]},
    "frozen by rate": {**ADAM, "MODEL__TEMP_FROZEN_PARAMS_ITER_MAP": [["heads.0.clf.0.weight", 1]],
                       "MODEL__TEMP_FROZEN_PARAMS_BY": "rate"},
    "frozen": {"MODEL__NON_TRAINABLE_PARAMS": ["trunk.patch_embed.proj.weight"]},
    "whole trunk at once": {"MODEL__FSDP_CONFIG__AUTO_WRAP_THRESHOLD": 1_000_000},
    "compiled": {"MODEL__COMPILE": {"USE_COMPILE": True, "BACKEND": "aot_eager"}},
}  # fmt: skip


ON_GRADIENTS = (
    "clip", "clip to the largest", "clip each", "clip modules", "frozen for a while"
)  # fmt: skip


def _compare(pool: RankPool, folder: Path, changes: dict[str, Any], **close: float) -> Outcome:
    alone = run(folder, changes)
    ranks = pool.run(run, folder, {**changes, **SHARDED})
    for each in ranks:
        assert_close(each, alone, **close)
    held = [each.held for each in ranks]
    total = sum(each.numel() for name, each in alone.weights.items())
    assert sum(held) <= total  # nobody holds another's share
    assert max(held) < 0.75 * total
    return ranks[0]


@pytest.mark.parametrize("way", slow_but(("clip",), WAYS))
def test_ways(two_ranks: RankPool, tmp_path: Path, way: str) -> None:
    given = {**SMALL_VIT, **WAYS[way]}
    outcome = _compare(two_ranks, tmp_path, given, rtol=1e-4, atol=1e-6)
    if way in ON_GRADIENTS:  # or nothing would be compared
        plain = run(tmp_path / "plain", SMALL_VIT)
        assert abs(plain.losses[-1] - outcome.losses[-1]) > 1e-4


SAME_RANKS: dict[str, dict[str, Any]] = {
    "autocast to bf16": {"MODEL__AMP_PARAMS": {"USE_AMP": True, "AMP_TYPE": "pytorch",
                                               "AMP_DTYPE": "bfloat16"}},
    "dino on a resnet": {**CROPS, "LOSS__name": "dino_loss", "LOSS__dino_loss__momentum": 0.8,
                         "MODEL__HEAD__PARAMS": [["dino_head", {"in_dim": 32, "use_bn": True,
                                                  "num_clusters": [10], "hidden_dim": 12}]]},
    "deepclusterv2": {**CROPS, "LOSS": {"name": "deepclusterv2_loss", "deepclusterv2_loss": {
        "num_clusters": [3, 4], "kmeans_iters": 2,
        "memory_params": {"crops_for_mb": [0, 2], "embedding_dim": 8}}}},
    "prototypes of length 1": {
        **CROPS, "LOSS__name": "swav_loss", "OPTIMIZER__use_larc": True,
        "MODEL__HEAD__PARAMS": [["swav_head", {"dims": [32, 8], "use_bn": True,
                                                "num_clusters": [7]}]]},
    "views apart": {"MODEL__VIEWS_APART": True, **LOSSES["byol"],
                    "MODEL__HEAD__PARAMS": [["predictor_head", {"dims": [32, 12, 7],
                                                               "predictor_dims": [7, 6, 7]}]]},
    "accumulation and batch norms": {"OPTIMIZER__accumulate": 2, "DATA__TRAIN__DATA_LIMIT": 32},
}  # fmt: skip


@pytest.mark.parametrize(
    "way",
    slow_but(("dino on a resnet", "accumulation and batch norms"), SAME_RANKS),
)
def test_as_with_ddp(two_ranks: RankPool, tmp_path: Path, way: str) -> None:
    # The gradients of several passes are added after the ranks have met, not before: they round
    # differently, which batch norm magnifies. See tests/engine/test_task.py.
    rounding = {"rtol": 1e-3, "atol": 1e-5} if "COLLATE" in str(SAME_RANKS[way]) else {}
    _as_ddp(two_ranks, tmp_path, {**ONE_EPOCH, **SAME_RANKS[way]}, **rounding)


def _as_ddp(pool: RankPool, folder: Path, changes: dict[str, Any], **close: float) -> None:
    """By hand, for DDP itself warns of gradients in an unusual order in memory."""
    by_hand = {"DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True}
    plain = pool.run(run, folder, {**changes, **by_hand})
    ranks = pool.run(run, folder, {**changes, **SHARDED})
    for one, other in zip(ranks, plain, strict=True):
        assert_close(one, other, **{"rtol": 1e-5, "atol": 1e-7, **close})
    assert max(each.held for each in ranks) < 0.75 * plain[0].held


def test_batch_norms_over_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    alone = run(tmp_path, ONE_EPOCH)
    for each in two_ranks.run(run, tmp_path, {**ONE_EPOCH, **SHARDED, **SYNC_BN}):
        # As in tests/engine/test_task.py: batch norm over eight images magnifies rounding.
        assert_close(each, alone, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_four_ranks(four_ranks: RankPool, tmp_path: Path) -> None:
    """Some parameters have fewer rows than there are ranks: shares are empty."""
    dino = {**SMALL_VIT, **LOSSES["dino"], **ADAM, "MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True}}
    alone = run(tmp_path, dino)
    ranks = four_ranks.run(run, tmp_path, {**dino, **SHARDED})
    for each in ranks:
        assert_close(each, alone, rtol=1e-4, atol=1e-6)
    assert max(each.held for each in ranks) < 0.4 * sum(each.held for each in ranks)


def test_one_process_trains_the_plain_model(tmp_path: Path) -> None:
    plain, asked = run(tmp_path, ONE_EPOCH), run(tmp_path, {**ONE_EPOCH, **SHARDED})
    assert plain.losses == asked.losses
    assert all(torch.equal(plain.weights[name], asked.weights[name]) for name in plain.weights)


INITIAL: dict[str, dict[str, Any]] = {
    "dino": {**SMALL_VIT, **LOSSES["dino"], **ONE_EPOCH},
    "a trunk to anchor to": {**of_run(gram_weight=2.0, koleo_weight=0.0), **ONE_EPOCH},
}


def _from_weights(folder: Path, file: str, changes: dict[str, Any]) -> Outcome:
    """A run that starts from the weights of a file, the teacher as well."""
    watch = Watch()
    settings = on_ranks({**changes, "MODEL__WEIGHTS_INIT__PARAMS_FILE": file}, world_size())
    task = make_task(folder, [watch], **settings)
    task.load_initial_weights()
    loop.run(task)
    return outcome(task, watch)


@pytest.mark.parametrize("method", slow_but(["dino"], INITIAL))
def test_initial_weights_and_teachers_that_start_from_them(
    method: str, two_ranks: RankPool, tmp_path: Path
) -> None:
    initial = INITIAL[method]
    donor = make_task(tmp_path, [], **initial, SEED_VALUE=7)
    torch.save(vissl_state(donor.base_model), tmp_path / "w.torch")
    alone = _from_weights(tmp_path, str(tmp_path / "w.torch"), initial)
    plain = run(tmp_path, initial)
    assert alone.losses != plain.losses
    cut = {**initial, **SHARDED}
    for each in two_ranks.run(_from_weights, tmp_path, str(tmp_path / "w.torch"), cut):
        assert_close(each, alone, rtol=1e-4, atol=1e-6)


SUPERVISED: dict[str, Any] = {
    "TEST_MODEL": True,
    "METERS__names": ["accuracy_list_meter"],
    "LOSS": {"name": "cross_entropy_multiple_output_single_target"},
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [18, 10]}]],
    **{
        f"DATA__{split}": {
            "DATA_SOURCES": ["synthetic"],
            "LABEL_SOURCES": ["synthetic"],
            "RANDOM_SYNTHETIC_IMAGES": True,
            "DEFAULT_GRAY_IMG_SIZE": 8,
            "DATA_LIMIT": count,
            "TRANSFORMS": [{"name": "ToTensor"}],
            "COLLATE_FUNCTION": "default_collate",
        }
        for split, count in (("TRAIN", 16), ("TEST", 7))
    },
}


def _with_tests(folder: Path, changes: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    """With test phases, signs of collapse and histograms of weights and gradients."""
    watch = Watch()
    hooks = [LogCollapse(), watch, TensorBoardHistograms(1, parameters=True, gradients=True)]
    task = make_task(folder, hooks, **on_ranks(changes, world_size()))
    board = RunPlace(folder / f"board{world_size()}", 0)
    task.writers.extend([TensorBoardWriter(board)] if rank() == 0 else [])
    loop.run(task)
    return outcome(task, watch), task.phase_results


@pytest.mark.slow
def test_test_phases_and_hooks(two_ranks: RankPool, tmp_path: Path) -> None:
    changes = {**SMALL_VIT, **SUPERVISED}
    alone, figures = _with_tests(tmp_path, changes)
    for got, signs in two_ranks.run(_with_tests, tmp_path, {**changes, **SHARDED}):
        assert_close(got, alone, rtol=1e-4, atol=1e-6)
        assert signs["accuracy_list_meter"] == figures["accuracy_list_meter"]
        assert signs["loss"] == pytest.approx(figures["loss"], rel=1e-4)
    assert list((tmp_path / "board2" / "tb_logs").glob("events*"))


def _refused(folder: Path, changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        make_task(folder, [], **changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"TRAINER__TRAIN_STEP_NAME": "multi_optimizer_train_step",
          "TRAINER__multi_optimizer_train_step": {"OPTIMIZERS": {"all": {"parameters": ["*"],
                                                                         "losses": ["loss"],
                                                                         "name": "sgd"}}}},
         "multi_optimizer_train_step makes several backward passes"),
        ({"TRAINER__TRAIN_STEP_NAME": "loss_dict_train_step", "LOSS__name": "",
          "MODEL__BASE_MODEL_NAME": "tests.contracts.test_train_steps:GivesLosses"},
         "self_supervision_fsdp_task needs a trunk with heads; GivesLosses"),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded(
    two_ranks: RankPool, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    for message in two_ranks.run(_refused, tmp_path, {**SMALL_VIT, **changes, **SHARDED}):
        assert told in message
