"""`sweep`: many heads on one frozen trunk, through the real task."""

from __future__ import annotations

import io
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.engines.options import SweepOptions
from sslengine.engines.run import Run
from sslengine.engines.sweep import _grid, _values, sweep
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.launch import cli
from sslengine.launch.auto import settle_widths
from sslengine.monitor.history import columns
from sslengine.monitor.history import read as read_records
from sslengine.optim.build import build_optimizer
from sslengine.optim.options import OptimizerOptions
from tests.engines.rows import expect_complete
from tests.engines.runs import PowerCut, make_run, screen
from tests.integration.test_several_classes import several_classes, write_images
from tests.ranks import RankPool
from tests.tail import slow_but

SIDE = 16
TRUNK: dict[str, Any] = {
    "DATA__TRAIN__DATA_SOURCES": ["shapes"], "DATA__TRAIN__DATA_LIMIT": 60,
    "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": SIDE, "CHECKPOINT__CHECKPOINT_FREQUENCY": -1,
}  # fmt: skip
HEAD_SWEEP: dict[str, Any] = {
    **TRUNK,
    "DATA__TRAIN__LABEL_SOURCES": ["shapes"],
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomHorizontalFlip"}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 12,
    "DATA__TEST": {
        "DATA_SOURCES": ["shapes"], "LABEL_SOURCES": ["shapes"], "DATA_LIMIT": 30,
        "DEFAULT_GRAY_IMG_SIZE": SIDE, "TRANSFORMS": [{"name": "ToTensor"}],
        "BATCHSIZE_PER_REPLICA": 16,
    },
    "LOSS": {"name": "CrossEntropyLoss"},
    "HEAD_SWEEP": {"LR": [0.1, 1.0, 10.0], "WEIGHT_DECAY": [0.0, 0.01]},
    "CHECKPOINT__CHECKPOINT_FREQUENCY": 1,
}  # fmt: skip
VIT: dict[str, Any] = {
    "MODEL__TRUNK": {
        "NAME": "timm",
        "TIMM": {
            "model": "vit_tiny_patch16_224",
            "arguments": {
                "img_size": SIDE, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2,
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trunk")
    train(make_run(folder, **TRUNK))
    return folder


@pytest.fixture
def trained(trunk: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trunk, tmp_path, symlinks=True, dirs_exist_ok=True))


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return found


def _heads(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("sweep/*/checkpoints/checkpoint.torch")
    kept = torch.load(path, weights_only=False)
    found: dict[str, torch.Tensor] = kept["classy_state_dict"]["base_model"]["model"]["heads"]
    return found


@pytest.mark.slow
def test_the_best_head_on_held_out_images_is_tested_once(trained: Path) -> None:
    run = make_run(trained, "sweep", **HEAD_SWEEP)
    sweep(run)
    report = _report(trained)
    assert report["chosen_on"] == "10% of TRAIN"
    assert [each["name"] for each in report["heads"]] == [
        f"flatten lr {lr} wd {wd}" for lr in ("0.1", "1", "10") for wd in ("0", "0.01")
    ]
    best = max(report["heads"], key=lambda each: each["chosen_on"])
    assert (report["best"], report["test"]) == (best["name"], best["test"])
    counts = [each["test"] * 30 / 100 for each in report["heads"]]  # whole numbers of images
    assert counts == pytest.approx([round(each) for each in counts])
    assert len({each["test"] for each in report["heads"]}) > 1
    assert "chosen on   10% of TRAIN, of 6 heads" in screen(run)


@pytest.mark.slow
def test_heads_do_not_depend_on_each_other(trained: Path, tmp_path_factory: Any) -> None:
    """The first head, with others and alone: the same weights to the bit."""
    weights = str(trained / "checkpoints" / "checkpoint.torch")
    found = []
    for rates in ([1.0, 0.1, 3.0], [1.0]):
        folder = tmp_path_factory.mktemp("grid")
        given = {
            **HEAD_SWEEP,
            "HEAD_SWEEP": {"LR": rates, "WEIGHT_DECAY": [0.01], "SELECT_ON": "test"},
        }
        sweep(make_run(folder, "sweep", **given, MODEL__WEIGHTS_INIT__PARAMS_FILE=weights))
        found.append(_heads(folder)["0.0.linear.weight"])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "grid", [{"LR": [0.1, 1.0], "SELECT_ON": "test"},
             pytest.param(HEAD_SWEEP["HEAD_SWEEP"], marks=pytest.mark.slow)]
)  # fmt: skip
def test_it_goes_on_after_a_kill(
    grid: dict[str, Any], trained: Path, tmp_path_factory: Any
) -> None:
    whole = tmp_path_factory.mktemp("whole")
    weights = str(trained / "checkpoints" / "checkpoint.torch")
    given = {**HEAD_SWEEP, "HEAD_SWEEP": grid, "MODEL__WEIGHTS_INIT__PARAMS_FILE": weights}
    sweep(make_run(whole, "sweep", **given))
    cut = {**given, "HOOKS__EXTRA": [{"name": "test_power_cut", "after": 6}]}
    other = tmp_path_factory.mktemp("cut")
    with pytest.raises(PowerCut):
        sweep(make_run(other, "sweep", **cut))
    sweep(make_run(other, "sweep", **given))
    assert _report(other) == _report(whole)
    for name, each in _heads(whole).items():
        assert torch.equal(_heads(other)[name], each), name
    sweep(make_run(other, "sweep", **given))  # complete: nothing is trained again
    assert _report(other) == _report(whole)


@pytest.mark.slow
def test_class_tokens_of_blocks_and_the_mean_of_patches(tmp_path: Path) -> None:
    train(make_run(tmp_path, **TRUNK, **VIT, MODEL__HEAD__PARAMS=[["mlp", {"dims": ["auto", 8]}]],
                   DATA__TRAIN__TRANSFORMS=[{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"}]))  # fmt: skip
    given = {**HEAD_SWEEP, **VIT, "HEAD_SWEEP": {"LR": [0.1], "BLOCKS": [1, 2, 4]}}
    sweep(make_run(tmp_path, "sweep", **given))
    features = [each["feature"] for each in _report(tmp_path)["heads"]]
    assert features == [
        "concatCLS1", "concatCLS1+lastPOOL", "concatCLS2", "concatCLS2+lastPOOL",
    ]  # fmt: skip
    widths = [_heads(tmp_path)[f"{number}.0.linear.weight"].shape[1] for number in range(4)]
    assert widths == [24, 48, 48, 72]


@pytest.mark.slow
def test_each_source_of_features_has_a_best_head(tmp_path: Path) -> None:
    """Linear heads on the class token, the mean of the patches and both; blocks on the patches."""
    given = {**HEAD_SWEEP, **VIT, "OPTIMIZER__name": "adamw", "DATA__TRAIN__DATA_LIMIT": 24}
    train(make_run(tmp_path, **TRUNK, **VIT, MODEL__HEAD__PARAMS=[["mlp", {"dims": [24, 8]}]],
                   DATA__TRAIN__TRANSFORMS=[{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"}]))  # fmt: skip
    sources = ["lastPATCH", "lastCLS", "lastPOOL", "lastCLS+lastPOOL"]
    given["HEAD_SWEEP"] = {
        "HEAD": "attentive_blocks", "DEPTH": 2, "ATTENTION_HEADS": 3, "LR": [0.001, 0.01],
        "FEATURES": sources[:1], "LINEAR_FEATURES": sources[1:],
    }  # fmt: skip
    sweep(make_run(tmp_path, "sweep", **given))
    report, heads = _report(tmp_path), _heads(tmp_path)
    assert list(report["best_of_each"]) == sources
    for source, found in report["best_of_each"].items():
        own = [each for each in report["heads"] if each["feature"] == source]
        best = max(own, key=lambda each: each["chosen_on"])
        assert (found["name"], found["test"]) == (best["name"], best["test"])
    widths = [heads[f"{number}.0.linear.weight"].shape[1] for number in range(8)]
    assert widths == [24, 24, 24, 24, 24, 24, 48, 48]
    assert heads["0.0.before.0.query_key_value.weight"].shape == (72, 24)
    assert "2.0.query" not in heads


VJEPA2_DECAYS = {5e-4, 1e-3, 2e-3, 4e-3, 8e-3}
# The published recipes: optimizer, norm or form of the head, epochs or steps, rates at 1,024 images.
RECIPES: dict[str, tuple[str, dict[str, Any], tuple[int, int | None], dict[float, float]]] = {
    "mae": ("LARS", {"norm": "batch"}, (90, None), {0.0: 0.0, 10 / 90: 0.4, 50 / 90: 0.2}),
    "lejepa": ("AdamW", {"norm": "layer"}, (0, 12500), {0.0: 5e-7, 0.1: 5e-4, 1 - 1e-9: 5e-7}),
    "capi": ("AdamW", {"form": "query"}, (0, 12500), {0.0: 0.0, 0.1: 4e-5, 0.55: 2e-5}),
    "vjepa": ("AdamW", {"form": "block"}, (20, None), {0.0: 1e-3, 0.5: 5e-4, 1 - 1e-9: 0.0}),
    "vjepa2": ("AdamW", {"form": "blocks", "depth": 4, "heads": 16}, (20, None),
               {0.0: 1e-4, 0.25: 5e-4, 0.625: 2.5e-4, 1 - 1e-9: 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name: str, tmp_path: Path) -> None:
    optimizer_name, head, (epochs, steps), rates = RECIPES[name]
    run = settle_widths(resolve([
        "config=quickstart/mae", f"+config/benchmark/sweep={name}", "config.DATA.NUM_DATALOADER_WORKERS=0",
        "config.DATA.TRAIN.LABEL_SOURCES=[shapes]", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=1024",
        "config.DATA.TEST={DATA_SOURCES: [shapes], LABEL_SOURCES: [shapes], DATA_LIMIT: 20}",
        "config.MODEL.TRUNK.VISION_TRANSFORMERS.USE_CLASS_TOKEN=true",
    ]))  # fmt: skip
    made = Run(run, tmp_path, torch.device("cpu"), Console(file=io.StringIO()))
    options = read(run.config, SweepOptions)
    grid = _grid(made, options)
    sources = ["lastPATCH", "lastCLS", "lastPOOL", "lastCLS+lastPOOL"]
    features = {"mae": ["concatCLS1"], "lejepa": ["concatCLS2"], "capi": sources}
    assert list(dict.fromkeys(each.feature for each in grid)) == features.get(name, sources[:1])
    values = _values(options, grid, 10, None)
    assert head.items() <= values["MODEL.HEAD.PARAMS"][0][0][1].items()
    assert steps == run.config.OPTIMIZER.num_iterations
    assert steps or epochs == run.config.OPTIMIZER.num_epochs
    optimizer = build_optimizer(
        torch.nn.Linear(2, 2), read(run.config, OptimizerOptions), torch.device("cpu"), epochs or 10
    )
    assert type(optimizer.inner).__name__ == optimizer_name
    factor = grid[2 if name == "lejepa" else 0].lr
    for where, rate in rates.items():
        optimizer.schedule(where)
        assert optimizer.param_groups[0]["lr"] * factor == pytest.approx(rate, rel=1e-3, abs=1e-9)
    decays = {"mae": {0.0}, "lejepa": {1e-6}, "vjepa": {1e-3}, "vjepa2": VJEPA2_DECAYS,
              "capi": {5e-4, 1e-3, 5e-2}}  # fmt: skip
    assert {each.weight_decay for each in grid} == decays[name]
    assert len(grid) == {"lejepa": 5, "vjepa2": 20, "capi": 120}.get(name, 1)


def test_chosen_on_the_test_images(trained: Path) -> None:
    run = make_run(
        trained, "sweep", **{**HEAD_SWEEP, "HEAD_SWEEP": {"LR": [0.1, 1.0], "SELECT_ON": "test"}}
    )
    sweep(run)
    report = _report(trained)
    assert report["chosen_on"] == "TEST itself"
    assert report["test"] == max(each["test"] for each in report["heads"])
    assert not [*trained.glob("sweep/*/test")]


@pytest.mark.slow
def test_images_of_several_classes(tmp_path: Path) -> None:
    """Unknown labels count for no head; the best is chosen by the mean average precision."""
    images = several_classes(write_images(tmp_path), batch=24, OPTIMIZER__num_epochs=20)
    train(make_run(tmp_path, **{**images, "OPTIMIZER__num_epochs": 1}))
    given = {"HEAD_SWEEP": {"LR": [1e-6, 1.0], "SELECT_ON": "test", "UNTRAINED": True}}
    run = make_run(tmp_path, "sweep", **images, **given)
    sweep(run)
    low, high = _report(tmp_path)["heads"]
    assert high["test"] > 99 > low["test"] > 0
    assert _report(tmp_path)["test"] == high["test"]
    line, *notes = [each for each in screen(run).splitlines() if "linear_sweep" in each]
    assert line.split()[:2] == ["linear_sweep", "mAP"]
    assert "learning rate 1 is an end of those tried" in notes[0]
    report = json.loads((tmp_path / "evaluation.json").read_text())
    expect_complete({"scores": [], **report})
    swept = report["swept"]
    assert [row["features"] for row in swept] == ["trained", "untrained"]
    assert swept[0]["metrics"] == {"mAP": high["test"]}


def test_what_cannot_be(trained: Path, tmp_path_factory: Any) -> None:
    held = {"DATA__HOLD_OUT__SHARE": 0.2, "DATA__TEST": {"TRANSFORMS": [{"name": "ToTensor"}]}}
    with pytest.raises(ConfigError, match="HEAD_SWEEP.SELECT_ON: held_out takes a share of TRAIN"):
        sweep(make_run(trained, "sweep", **{**HEAD_SWEEP, **held}))
    with pytest.raises(CheckpointError, match="there are no trained weights at"):
        sweep(make_run(tmp_path_factory.mktemp("new"), "sweep", **HEAD_SWEEP))
    unlabelled = {
        **HEAD_SWEEP, "DATA__TRAIN__LABEL_SOURCES": [], "DATA__TRAIN__LABEL_TYPE": "sample_index",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="LABEL_SOURCES: a sweep needs labels"):
        sweep(make_run(trained, "sweep", **unlabelled))


RATES = {
    "lr": {
        "auto_lr_scaling": {"auto_scale": True, "base_value": 1.0, "base_lr_batch_size": 256},
        "name": "cosine", "start_value": 1.0, "end_value": 0.0, "update_interval": "step",
    },
}  # fmt: skip
GLOBAL = 12  # images of a step


def _on_ranks(folder: Path, weights: str, ranks: int, **grid: Any) -> None:
    given = {**HEAD_SWEEP, "HEAD_SWEEP": {**HEAD_SWEEP["HEAD_SWEEP"], **grid}, "LOG_FREQUENCY": 1,
             "DATA__TRAIN__BATCHSIZE_PER_REPLICA": GLOBAL // ranks,
             "OPTIMIZER__param_schedulers": RATES,
             "MODEL__SYNC_BN_CONFIG__CONVERT_BN_TO_SYNC_BN": True}  # fmt: skip
    sweep(make_run(folder, "sweep", **given, DISTRIBUTED__NUM_PROC_PER_NODE=ranks,
                   MODEL__WEIGHTS_INIT__PARAMS_FILE=weights))  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "grid"),
    [(2, {"NORM": "batch", "HEAD": "attentive", "SELECT_ON": "test"}),
     *(pytest.param(each, grid, marks=pytest.mark.slow)
       for each, grid in [(2, {}), (2, {"SELECT_ON": "test"}), (4, {}), (2, {"NORM": "batch"})])],
)  # fmt: skip
def test_heads_and_their_rates_are_those_of_one_rank(
    ranks: int, grid: dict[str, Any], trained: Path, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """With the same images in a step. Features of other batch sizes are rounded otherwise."""
    weights = str(trained / "checkpoints" / "checkpoint.torch")
    one, several = tmp_path / "one", tmp_path / "several"
    _on_ranks(one, weights, 1, **grid)
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[ranks])
    pool.run(partial(_on_ranks, several, weights, ranks, **grid))
    heads = _heads(one)
    assert len({name.partition(".")[0] for name in heads}) == 6
    for name, each in _heads(several).items():
        torch.testing.assert_close(each, heads[name], rtol=1e-4, atol=1e-6)
    rates = [columns(read_records(next(each.glob("sweep/*-*"))))["lr"]
             for each in (one, several)]  # fmt: skip
    assert rates[0] == rates[1]
    assert rates[0][0] == pytest.approx(10.0 * GLOBAL / 256)  # the largest of the heads
    assert _report(several)["heads"] == [
        {**each, **{name: pytest.approx(each[name]) for name in ("chosen_on", "test")}}
        for each in _report(one)["heads"]
    ]


@pytest.mark.parametrize(
    ("name", "factor"),
    slow_but(
        [("linear", 4)],
        [("linear", 4), ("attentive", 4), ("mae", 4), ("lejepa", 1), ("vjepa", 1), ("vjepa2", 1)],
    ),
)
def test_published_rates_follow_the_images_of_a_step(name: str, factor: int) -> None:
    """1,024 images of one rank, shared by four, and of each of four. Two recipes have fixed rates."""
    highest = []
    for ranks, images in ((1, 1024), (4, 256), (4, 1024)):
        run = settle_widths(resolve([
            "config=quickstart/mae", f"+config/benchmark/sweep={name}",
            f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={images}",
            f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
            "config.DATA.TRAIN.LABEL_SOURCES=[shapes]",
            "config.DATA.TEST={DATA_SOURCES: [shapes], LABEL_SOURCES: [shapes], DATA_LIMIT: 20}",
            "config.MODEL.TRUNK.VISION_TRANSFORMERS.USE_CLASS_TOKEN=true",
        ]))  # fmt: skip
        options = read(run.config, OptimizerOptions)
        optimizer = build_optimizer(torch.nn.Linear(2, 2), options, torch.device("cpu"), 10)
        rates = []
        for where in (0.0, 0.1, 0.12):  # before, at and after the end of a warm-up
            optimizer.schedule(where)
            rates.append(optimizer.param_groups[0]["lr"])
        highest.append(max(rates))
    assert highest[1] == pytest.approx(highest[0])
    assert highest[2] == pytest.approx(factor * highest[0])


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", ["sweep=attentive", "finetune=shapes", "frozen=shapes"])
def test_on_top_of_a_recipe_with_several_inputs_and_heads(benchmark: str, tmp_path: Path) -> None:
    small = ["config.DATA.TRAIN.DATA_LIMIT=40", "config.DATA.NUM_DATALOADER_WORKERS=0",
             "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8", f"config.CHECKPOINT.DIR={tmp_path}"]  # fmt: skip
    assert cli.main(["config=quickstart/dinov2", *small, "config.OPTIMIZER.num_iterations=2"]) == 0
    labelled = "{DATA_SOURCES: [shapes], LABEL_SOURCES: [shapes], DATA_LIMIT: 20, DEFAULT_GRAY_IMG_SIZE: 48}"
    more = {
        "sweep=attentive": ["config.DATA.TRAIN.LABEL_SOURCES=[shapes]", f"config.DATA.TEST={labelled}",
                            "config.DATA.TRAIN.TRANSFORMS.0.size=48", "config.OPTIMIZER.num_iterations=2",
                            "config.HEAD_SWEEP.LR=[0.001]", "config.HEAD_SWEEP.WEIGHT_DECAY=[0.05]"],
        "finetune=shapes": ["config.OPTIMIZER.num_epochs=1", "config.DATA.TEST.DATA_LIMIT=20"],
        "frozen=shapes": ["config.DATA.TEST.DATA_LIMIT=20"],
    }[benchmark]  # fmt: skip
    assert (
        cli.main(["config=quickstart/dinov2", f"+config/benchmark/{benchmark}", *small, *more]) == 0
    )
