"""`train`: build the task, resume from its newest checkpoint, run it."""

from __future__ import annotations

import logging
import time
from typing import Any

from sslengine import startup
from sslengine.checkpoint import files
from sslengine.checkpoint.contents import UNFINISHED
from sslengine.checkpoint.lock import owned
from sslengine.checkpoint.manifest import path_for, read_manifest
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.resume import find, set_aside
from sslengine.config.options import RunOptions, TrainerOptions
from sslengine.config.sections import read
from sslengine.config.stored import as_stored, changes
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.engine import loop
from sslengine.engine.phases import Progress, place_again
from sslengine.engines.run import Run, check_results
from sslengine.errors import CheckpointError, ConfigError
from sslengine.hooks.options import HooksOptions
from sslengine.losses.options import LossOptions
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.monitor.run_record import keep_command, recorded
from sslengine.monitor.writers import RunPlace, Writer, build_writers, clock
from sslengine.registry import TASKS, component_key, register_engine

log = logging.getLogger("sslengine")


@register_engine("train")
def train(run: Run) -> bool:
    """Returns whether the run is trained: not where it only tests."""
    return train_task(run)[1]


def train_task(run: Run) -> tuple[Any, bool]:
    """The task at its end, and whether it is trained."""
    task = TASKS.get(read(run.config, TrainerOptions).TASK_NAME)(
        run.config, run.run_dir, run.device
    )
    task.prepare()
    with owned(run.run_dir):
        return task, train_prepared(task, run)


def train_prepared(task: Any, run: Run) -> bool:
    """Train to the end, from the newest checkpoint; say whether the run is trained."""
    began = time.monotonic()
    resume(task, run)
    if task.done_training():
        run.say(
            f"{run.run_dir}: this run is complete, {task.iteration} steps; nothing to do. "
            f"Train it again: config.CHECKPOINT.OVERWRITE_EXISTING=true, which moves its files "
            f"aside. Another run: another config.CHECKPOINT.DIR."
        )
        task.close()
        check_results(run, task.results)
        return not task.test_only
    environment = {**run.describe(), "recipe": run.resolved.name}
    task.writers.extend(make_writers(run, task.iteration))
    _introduce(task, run)
    startup.announce("making the first step")
    with recorded(task, run.run_dir, environment):
        loop.run(task)
    run.say(
        f"done: {task.iteration} steps in {clock(time.monotonic() - began)}\n"
        f"  checkpoint  {run.run_dir / 'checkpoints' / files.POINTER}"
    )
    metrics = [path for path in (run.run_dir / "metrics.jsonl",) if path.exists()]
    run.console.print(*(f"  metrics     {path}" for path in metrics), sep="\n")
    check_results(run, task.results)
    return not task.test_only


def make_writers(run: Run, iteration: int) -> list[Writer]:
    """Make the writers of rank 0; other ranks have none."""
    if not is_primary():
        return []
    hooks = read(run.config, HooksOptions)
    entries, board = list(hooks.WRITERS), hooks.TENSORBOARD_SETUP
    names = [each if isinstance(each, str) else each["name"] for each in entries]
    if board.USE_TENSORBOARD and "tensorboard" not in names:
        entries.append({"name": "tensorboard", "flush_minutes": board.FLUSH_EVERY_N_MIN})
    trains = not read(run.config, RunOptions).TEST_ONLY
    config = as_stored(run.config, run.resolved.texts)
    place = RunPlace(run.run_dir, iteration, run.console, trains, config)
    return build_writers(entries, place)


def resume(task: Any, run: Run) -> None:
    """Resume from the newest checkpoint of the run's folder, if there is one."""
    options = read(run.config, CheckpointOptions)
    if is_primary():
        files.remove_leftovers(run.run_dir, UNFINISHED)
    found = find(run.run_dir / "checkpoints", options, task.peers)
    if found is not None and "classy_state_dict" not in found.state:
        raise CheckpointError(f"{found.path} has no `classy_state_dict`: no training run saved it.")
    if found is None or (options.OVERWRITE_EXISTING and _is_complete(task, found.state)):
        if options.OVERWRITE_EXISTING:
            _start_over(run)
        task.load_initial_weights()
        return
    _same_run(run, options)
    task.set_classy_state(found.state["classy_state_dict"])
    if is_primary() and path_for(found.path).exists():
        task.state.recall(read_manifest(found.path).results)
    message = f"resumed from {found.path}: {_place(task)}"
    if task.done_training():
        log.info("%s", message)
    else:
        run.say(message)


def _place(task: Any) -> str:
    if task.test_only:
        return f"a test after {task.iteration} train steps"
    steps = task.phase.whole or task.phase.steps
    return f"epoch {task.phase.epoch + 1}, step {task.progress.step} of {steps}"


def _same_run(run: Run, options: CheckpointOptions) -> None:
    """Report what changed in the config since the last start; refuse another model or method."""
    path = run.run_dir / "config.yaml"
    there = is_primary() and path.is_file()
    text = broadcast_object(path.read_text("utf-8", errors="replace") if there else None)
    if text is None:
        return
    now = as_stored(run.config, run.resolved.texts)
    try:
        found = changes(text, now, run.resolved.origins, str(path))
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nA run that resumes is compared with it. Restore it; or move it "
            f"away, and nothing is compared."
        ) from error
    refused = [] if options.ALLOW_CHANGED_CONFIG else [each for each in found if not each.allowed]
    if refused:
        raise ConfigError(
            f"{run.run_dir} holds a run of another model or method:\n  "
            + "\n  ".join(map(str, refused))
            + "\nRestore the old values, choose another config.CHECKPOINT.DIR, or allow the change "
            "with config.CHECKPOINT.ALLOW_CHANGED_CONFIG=true."
        )
    if found:
        run.say("changed since the last start:\n  " + "\n  ".join(map(str, found)))


def _is_complete(task: Any, state: dict[str, Any]) -> bool:
    progress = Progress.from_state(state["classy_state_dict"]["progress"])
    return bool(task.parts.plan.is_complete(place_again(task.phases, progress)))


def _start_over(run: Run) -> None:
    moved_to = set_aside(run.run_dir)
    if moved_to is not None:
        run.say(f"starting from the beginning; the earlier run's files are in {moved_to}")


def _introduce(task: Any, run: Run) -> None:
    """Print the run's name, folder, machine, data and model before the first step."""
    trained = sum(p.numel() for p in task.learner.parameters() if p.requires_grad)
    ranks = f"{world_size()} rank{'s' if world_size() > 1 else ''}"
    feed = task.train_feed or task.test_feed
    lines = [
        f"{run.resolved.name} -> {run.run_dir}",
        f"  {ranks} on {run.device.type}, {task.precision.name}, seed {task.seed}",
        f"  {feed.num_samples} images, {feed.steps_per_epoch} steps an epoch, "
        f"{sum(p.own_steps for p in task.phases if p.train)} in total",
        f"  {_names(task, run)}, {trained / 1e6:.2f} M parameters",
    ]
    if is_primary() and run.resolved.arguments:
        lines.append(f"  started by {keep_command(run.run_dir, run.resolved.arguments)}")
    run.say("\n".join(lines))


def _names(task: Any, run: Run) -> str:
    """The names of the trunk and the loss; of the model, if it is a custom one."""
    if not (task.replayable or isinstance(task.base_model, Model)):
        return type(task.base_model).__name__  # an object
    model, loss = read(run.config, ModelOptions), read(run.config, LossOptions).name
    custom = model.BASE_MODEL_NAME != "multi_input_output_model"
    name = component_key(model.BASE_MODEL_NAME) if custom else model.TRUNK.NAME
    return f"{name}, {loss}" if loss else name
