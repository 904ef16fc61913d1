"""Check before a run starts that it will report the metrics that its config names.

These are CHECKPOINT.BEST.METRIC and HOOKS.EARLY_STOPPING.MONITOR. What a run with code of the
user's will report is not known: there the first phase finds a wrong name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.dotted import full_metric_name, no_such_metric
from sslengine.errors import ConfigError
from sslengine.hooks.options import HooksOptions
from sslengine.meters.base import build_meters
from sslengine.meters.options import MetersOptions

OF_COLLAPSE = ("projection_std", "projection_rank", "trunk_rank", "trunk_rows", "input_std",
               "patch_spread", "loss_scale")  # fmt: skip
OF_TIMER = ("seconds_per_step", "percent_in_hooks")
OF_MEMORY = ("rss_gb", "gpu_allocated_gb", "gpu_reserved_gb")
ANY = ".*"  # behind a name: all names that begin with it


def expect_known_metrics(config: DictConfig) -> None:
    hooks = read(config, HooksOptions)
    wanted = {
        "config.CHECKPOINT.BEST.METRIC": read(config, CheckpointOptions).BEST.METRIC,
        "config.HOOKS.EARLY_STOPPING.MONITOR": hooks.EARLY_STOPPING.MONITOR,
    }
    if not any(wanted.values()) or _may_report_more(config):
        return
    known = list(reported(config))
    for where, name in wanted.items():
        if name and not _is_among(full_metric_name(name), known):
            raise ConfigError(f"{where}: {no_such_metric(name, known)}")


def reported(config: DictConfig) -> Iterator[str]:
    """The names of the metrics of train and test phases."""
    run, hooks = read(config, RunOptions), read(config, HooksOptions)
    meters = read(config, MetersOptions)
    of_meters = [f"{each.name}.{name}" for each in build_meters(meters) for name in each.names()]
    every = ["loss", f"loss{ANY}"]
    if run.TEST_MODEL or run.TEST_ONLY:
        yield from (f"test.{name}" for name in (*every, *of_meters))
    if not run.TEST_ONLY:
        of_train = of_meters if meters.enable_training_meter else []
        yield from (f"train.{name}" for name in (*every, *of_train, *_of_hooks(hooks)))


def _of_hooks(hooks: HooksOptions) -> Iterator[str]:
    online = hooks.ONLINE_EVAL
    if online.EVERY:
        yield from (f"online.{name}" for name in online.names())
    yield from (f"set_loss.{name.lower()}" for name in hooks.EVALUATE_LOSS.SETS)
    yield from OF_COLLAPSE if hooks.COLLAPSE_SIGNS else ()
    yield from OF_TIMER if hooks.ITERATION_TIMER else ()
    yield from OF_MEMORY if hooks.MEMORY_SUMMARY.LOG_PEAKS else ()


def _is_among(name: str, known: Sequence[str]) -> bool:
    groups = tuple(each.removesuffix("*") for each in known if each.endswith(ANY))
    return name in known or name.startswith(groups)


def _may_report_more(config: DictConfig) -> bool:
    """Whether there is code of the user's: hooks, methods and models may put any metric."""
    named = (
        config.LOSS.name, config.MODEL.BASE_MODEL_NAME, config.MODEL.TRUNK.NAME,
        config.TRAINER.TASK_NAME, config.TRAINER.TRAIN_STEP_NAME, *config.METERS.names,
    )  # fmt: skip
    return bool(config.PLUGINS or config.HOOKS.EXTRA) or any(":" in str(each) for each in named)
