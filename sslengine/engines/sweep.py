"""`sweep`: classifiers with many learning rates on one frozen trunk, and the accuracy of the best.

    train    all heads of config.HEAD_SWEEP at once (many_heads_train_step), on TRAIN without a
             held-out share, in a folder of `sweep` in the run's; a killed sweep resumes
    choose   the head that is best on that share
    test     all heads on TEST, once; sweep.json and the table name the chosen head

With HEAD_SWEEP.SELECT_ON: test nothing is held out, and the best head on TEST is reported, as some
published protocols do: the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rich.table import Table

from sslengine.atomic import write_json
from sslengine.checkpoint.resume import newest_path
from sslengine.config.sections import read
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.engine.build import classes_of_train, input_channels
from sslengine.engines.finetune import digest_of, folder_of, sub_run
from sslengine.engines.options import FORMS, HELD_OUT, LINEAR, SweepOptions
from sslengine.engines.report import SWEEP, report_trained, write_result
from sslengine.engines.run import Run, check_results_here
from sslengine.engines.train import train_task
from sslengine.errors import ConfigError
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import VERSIONS, note_choice
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import JOIN, Trunk
from sslengine.registry import register_engine
from sslengine.trained import require_weights

OF_EVAL = "MODEL.FEATURE_EVAL_SETTINGS"
# What the held-out images of TRAIN have from TEST.
READ_AS_TEST = [
    "TRANSFORMS", "COLLATE_FUNCTION", "COLLATE_FUNCTION_PARAMS", "BATCHSIZE_PER_REPLICA",
    "DROP_LAST",
]  # fmt: skip

Scores = Mapping[str, float]  # in percent, by the name of the head


@dataclass(frozen=True)
class Cell:
    """One head of the grid."""

    feature: str
    lr: float
    weight_decay: float
    linear: bool = True

    @property
    def name(self) -> str:
        return f"{self.feature} lr {self.lr:g} wd {self.weight_decay:g}"


@register_engine("sweep")
def sweep(run: Run) -> None:
    options = read(run.config, SweepOptions)
    _expect_images_to_choose_on(run, options)
    grid, classes = _grid(run, options), _classes(run)
    starts = {"trained": require_weights(run.config, run.run_dir)}
    run.describe()
    if options.UNTRAINED and starts["trained"] is not None:
        starts["untrained"] = None
    found = {start: _swept(run, grid, classes, start, file) for start, file in starts.items()}
    if is_primary():
        _report(run, found["trained"])


def _swept(
    run: Run, grid: list[Cell], classes: Classes, start: str, weights: Path | None
) -> dict[str, Any]:
    """Score the heads on the images to choose on and on TEST. Collective."""
    options, digest = read(run.config, SweepOptions), digest_of(weights)
    several, protocol = bool(classes.width), f"{options.HEAD}_sweep"
    outputs = classes.width or 1 + max(classes.by_value.values())
    values = _values(options, grid, outputs, weights) | _judged_by(grid, several)
    folder = folder_of(run, SWEEP, f"{options.HEAD}-{start}", digest)
    run.say(f"{options.HEAD} sweep: {weights or 'as initialised'} -> {folder}")
    held = options.SELECT_ON == HELD_OUT
    trained = sub_run(run, folder, values | (_held_out(run, options) if held else {}))
    task, _ = train_task(trained)
    chosen_on = tested = _scores(task.results, several)
    if held:
        testing = {
            "TEST_ONLY": True,
            "MODEL.WEIGHTS_INIT.PARAMS_FILE": str(newest_path(folder / "checkpoints")),
            f"{OF_EVAL}.EVAL_TRUNK_AND_HEAD": True,
        }
        test = train_task(sub_run(run, folder / "test", values | testing))[0]
        tested = _scores(test.results, several)
    heads = [{"name": each.name, "feature": each.feature, "lr": each.lr,
              "weight_decay": each.weight_decay, "chosen_on": chosen_on[each.name],
              "test": tested[each.name]} for each in grid]  # fmt: skip
    of_each = {feature: _best([each for each in heads if each["feature"] == feature])
               for feature in dict.fromkeys(each.feature for each in grid)}  # fmt: skip
    best = _best(heads)
    about = {"best": best["name"], "chosen_on": _images_to_choose_on(run, options, grid),
             "best_of_each": of_each}  # fmt: skip
    if is_primary():
        row = {
            "protocol": protocol,
            "version": VERSIONS[protocol],
            "features": start,
            "metrics": {"mAP" if several else "top_1": best["test"]},
            "layer": best["feature"],
            "steps": task.iteration,
            "notes": note_choice([best["lr"]], [each.lr for each in grid], None, "learning rate"),
            **about,
        }
        write_result(run, folder, SWEEP, weights, digest, row)
    return {"head": options.HEAD, "test": best["test"], **about, "heads": heads}


def _best(heads: list[dict[str, Any]]) -> dict[str, Any]:
    return max(heads, key=lambda each: each["chosen_on"])


def _expect_images_to_choose_on(run: Run, options: SweepOptions) -> None:
    if options.SELECT_ON == HELD_OUT and read(run.config, DataOptions).HOLD_OUT.SHARE:
        raise ConfigError(
            "config.HEAD_SWEEP.SELECT_ON: held_out takes a share of TRAIN to choose the head on, "
            "and config.DATA.HOLD_OUT makes TEST of such a share already. Give TEST other images, "
            "or choose on them: SELECT_ON: test."
        )


def _classes(run: Run) -> Classes:
    found = classes_of_train(run.config)
    if not found or not (found[0].width or found[0].by_value):
        raise ConfigError("config.DATA.TRAIN.LABEL_SOURCES: a sweep needs labels.")
    return found[0]


# ---- the grid


def _grid(run: Run, options: SweepOptions) -> list[Cell]:
    features = options.FEATURES or _features_of(run, options)
    forms = [*((each, options.HEAD == LINEAR) for each in features),
             *((each, True) for each in options.LINEAR_FEATURES)]  # fmt: skip
    return [
        Cell(feature, lr, decay, linear)
        for (feature, linear), lr, decay in product(forms, options.LR, options.WEIGHT_DECAY)
    ]


def _features_of(run: Run, options: SweepOptions) -> list[str]:
    model = read(run.config, ModelOptions)
    model.INPUT_CHANNELS = input_channels(run.config)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        trunk = build_trunk(model)
    found = _class_tokens(trunk, options) if options.HEAD == LINEAR else _tokens(trunk)
    return list(dict.fromkeys(found))


def _class_tokens(trunk: Trunk, options: SweepOptions) -> Iterator[str]:
    names = trunk.feature_names
    if "concatCLS1" not in names:
        yield "lastPOOL" if "lastPOOL" in names else names[-1]
        return
    blocks = sum(name.startswith("concatCLS") for name in names)
    for count in options.BLOCKS:
        yield f"concatCLS{min(count, blocks)}"
        if options.WITH_PATCH_MEAN:
            yield f"concatCLS{min(count, blocks)}{JOIN}lastPOOL"


def _tokens(trunk: Trunk) -> Iterator[str]:
    for name in ("lastPATCH", "res5"):
        if name in trunk.feature_names:
            yield name
            return
    yield trunk.feature_names[-2]  # in front of the pooled final feature


# ---- the runs


def _values(
    options: SweepOptions, grid: list[Cell], outputs: int, weights: Path | None
) -> dict[str, Any]:
    """Configure both runs: the frozen trunk with a head for each cell."""
    return {
        "MODEL.BASE_MODEL_NAME": "multi_input_output_model",
        "MODEL.WEIGHTS_INIT.PARAMS_FILE": str(weights or ""),
        "MODEL.MULTI_INPUT_HEAD_MAPPING": [],
        "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
        "MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP": [],
        f"{OF_EVAL}.EVAL_MODE_ON": True,
        f"{OF_EVAL}.FREEZE_TRUNK_ONLY": True,
        f"{OF_EVAL}.EXTRACT_TRUNK_FEATURES_ONLY": False,
        f"{OF_EVAL}.SHOULD_FLATTEN_FEATS": False,
        f"{OF_EVAL}.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [
            [each.feature, ["Identity", []]] for each in grid
        ],
        "MODEL.HEAD.PARAMS": [[_head(options, outputs, each)] for each in grid],
        "TRAINER.TRAIN_STEP_NAME": "many_heads_train_step",
        "OPTIMIZER.param_group_constructor": "linear_eval_heads",
        "OPTIMIZER.multipliers": [],
        "OPTIMIZER.linear_eval_heads": [
            {"lr": each.lr, "weight_decay": each.weight_decay} for each in grid
        ],
        "TEST_MODEL": True,
        "METERS.enable_training_meter": False,
    }


def _head(options: SweepOptions, outputs: int, cell: Cell) -> list[Any]:
    if cell.linear:  # DINOv2's start, or CAPI's
        std = 0.01 if options.HEAD == LINEAR else 0.02
        return ["linear_probe", {"dims": ["auto", outputs], "norm": options.NORM, "std": std}]
    form = FORMS[options.HEAD]
    attention = {"form": form, "heads": options.ATTENTION_HEADS, "norm": options.NORM}
    if form == "blocks":
        attention["depth"] = options.DEPTH
    return ["attentive_probe", {"in_dim": "auto", "out_dim": outputs, **attention}]


def _judged_by(grid: list[Cell], several: bool) -> dict[str, Any]:
    names = {"num_meters": len(grid), "meter_names": [each.name for each in grid]}
    if several:
        return {
            "LOSS.name": "bce_logits_multiple_output_single_target",
            "METERS.names": ["mean_ap_list_meter"],
            "METERS.mean_ap_list_meter": names,
        }
    return {
        "LOSS.name": "cross_entropy_multiple_output_single_target",
        "METERS.names": ["accuracy_list_meter"],
        "METERS.accuracy_list_meter": {**names, "topk_values": [1]},
    }


def _held_out(run: Run, options: SweepOptions) -> dict[str, Any]:
    """TEST is a share of TRAIN, read as TEST is."""
    test = run.config.DATA.TEST
    read_so: Any = OmegaConf.to_container(OmegaConf.masked_copy(test, READ_AS_TEST))
    few: Any = OmegaConf.to_container(run.config.DATA.TRAIN.DATA_LIMIT_SAMPLING)
    read_so["DATA_LIMIT_SAMPLING"] = few  # no other labels are used to choose
    values = {"DATA.HOLD_OUT.SHARE": options.HELD_OUT, "DATA.TEST": read_so}
    groups = read(run.config, LinearProbeOptions).GROUP_COLUMN
    values |= {"DATA.HOLD_OUT.GROUP_COLUMN": groups} if groups else {}
    if (limit := run.config.DATA.TRAIN.DATA_LIMIT) > 0:
        values["DATA.TRAIN.DATA_LIMIT"] = max(1, limit - round(options.HELD_OUT * limit))
    return values


def _scores(results: Mapping[str, Any], several: bool) -> Scores:
    """Return percentages by the name of the head. The same on all ranks."""
    meter, metric = ("mean_ap_list_meter", "mAP") if several else ("accuracy_list_meter", "top_1")
    return broadcast_object(dict(results["test"][meter][metric]) if is_primary() else {})


def _images_to_choose_on(run: Run, options: SweepOptions, grid: list[Cell]) -> str:
    if len(grid) == 1:
        return "nothing: there is one head"
    if options.SELECT_ON != HELD_OUT:
        return "TEST itself"
    groups = read(run.config, LinearProbeOptions).GROUP_COLUMN
    return f"{options.HELD_OUT:.0%} of TRAIN" + (" in whole groups" if groups else "")


def _report(run: Run, content: dict[str, Any]) -> None:
    path = run.run_dir / "sweep.json"
    write_json(path, content)
    table = Table("feature", "best head", "chosen", "test", box=None, pad_edge=False)
    for feature, top in content["best_of_each"].items():
        table.add_row(
            feature, f"lr {top['lr']:g}, wd {top['weight_decay']:g}",
            f"{top['chosen_on']:.1f} %", f"{top['test']:.1f} %",
        )  # fmt: skip
    run.console.print(table)
    report_trained(run)
    run.console.print(f"  best        {content['best']}: {content['test']:.1f} % on TEST")
    run.console.print(f"  chosen on   {content['chosen_on']}, of {len(content['heads'])} heads")
    run.console.print(f"  report      {path}")
    check_results_here(run, {"test": {"sweep": {"best": content["test"]}}})
