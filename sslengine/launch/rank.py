"""One process of a run: join the process group, open the log, run the engine, leave."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from omegaconf import DictConfig

from sslengine import catalog, startup
from sslengine.checkpoint.contents import run_folder
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import (
    DistributedOptions,
    MachineOptions,
    ReproducibilityOptions,
    RunOptions,
)
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.contrib.heartbeat import heartbeat, leave_at_once
from sslengine.data.loading import lean_torchvision
from sslengine.data.loading.loader import boot_server
from sslengine.data.options import DataOptions
from sslengine.distributed import process_group
from sslengine.distributed.ranks import is_primary, pick_device, rank
from sslengine.engines.run import Run
from sslengine.errors import FolderInUseError, Preempted
from sslengine.export.at_end import write_weights
from sslengine.monitor.console import close_log, open_log
from sslengine.precision import set_deterministic, set_kernels
from sslengine.registry import ENGINES, load_plugins
from sslengine.trust import closed

log = logging.getLogger("sslengine")


def run_rank(resolved: Resolved, join: bool) -> None:
    """Run the engine in this process. join: the environment names a process group to join."""
    with closed(resolved.opened), startup.pause_garbage_collection():
        _run_rank(resolved, join)


def _run_rank(resolved: Resolved, join: bool) -> None:
    assert catalog  # imported to declare all names
    assert lean_torchvision  # imported to save a second of imports
    config = resolved.config
    options = read(config, RunOptions)
    load_plugins(options.PLUGINS)
    folder = run_folder(config)
    machine, kernels = read(config, MachineOptions), read(config, ReproducibilityOptions)
    device = pick_device(machine.DEVICE)
    of_cudnn = kernels.CUDDN_DETERMINISTIC or kernels.DETERMINISTIC
    set_kernels(machine.PRECISION, kernels.CUDNN_BENCHMARK, of_cudnn)
    if kernels.DETERMINISTIC:
        set_deterministic()
    _set_threads(config, device)
    workers = read(config, DataOptions).NUM_DATALOADER_WORKERS
    if workers and options.MULTI_PROCESSING_METHOD == "forkserver":
        boot_server()  # it starts while this process imports the task and joins the others
    if join:
        _join(config, device)
    try:
        run_engine(Run(resolved, folder, device))
    finally:
        process_group.leave()


def run_engine(run: Run, engine: Callable[[Run], bool] | None = None) -> None:
    """Call the run's engine, or this one, with its log open; then write the page and weights."""
    folder = run.run_dir
    open_log(folder, rank(), read(run.config, RunOptions).VERBOSE)
    silence = read(run.config, DistributedOptions).HEARTBEAT_SECONDS
    try:
        for warning in run.resolved.warnings:
            log.warning("%s", warning)
        with heartbeat(silence, partial(leave_at_once, folder)):
            engine = engine or ENGINES.get(run.resolved.engine_name, "engine_name")
            startup.imported()
            with reported(run):
                trained = engine(run)
                if trained and is_primary():
                    write_weights(run)
    except (Preempted, FolderInUseError):  # the log of a folder in use is another run's
        raise
    except BaseException:
        log.info("the run ended with an error", exc_info=True)  # the caller prints it
        process_group.keep_record(folder)
        raise
    finally:
        close_log()


@contextmanager
def reported(run: Run) -> Iterator[None]:
    """Write the page of a run when the block ends, also with an error."""
    engine = run.resolved.engine_name
    wanted = engine in ("train", "evaluate") and read(run.config, CheckpointOptions).REPORT_AT_END
    try:
        yield
    finally:
        if wanted and is_primary() and (run.run_dir / "config.yaml").is_file():
            try:  # imported only now: a run starts without libraries that draw
                from sslengine.report.end_pages import report_end

                report_end(run, engine == "train")
            except Exception as error:  # the run is over: also what a damaged file raises
                log.warning("the page of %s was not written: %s", run.run_dir, error)


def _set_threads(config: DictConfig, device: torch.device) -> None:
    """Share the cores of a node among its ranks and loader workers, on a CPU.

    With more threads than cores, threads wait for each other: on 2 cores with one worker, the
    quickstart takes 1.6 times as long with 2 threads as with 1. If OMP_NUM_THREADS is set, it
    decides.
    """
    if device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for_this_rank = (cores or 1) // read(config, DistributedOptions).NUM_PROC_PER_NODE
    torch.set_num_threads(max(1, for_this_rank - read(config, DataOptions).NUM_DATALOADER_WORKERS))


def _join(config: DictConfig, device: torch.device) -> None:
    options = read(config, DistributedOptions)
    if options.NCCL_DEBUG:
        os.environ.setdefault("NCCL_DEBUG", "INFO")
    if options.NCCL_SOCKET_NTHREADS:
        os.environ.setdefault("NCCL_SOCKET_NTHREADS", str(options.NCCL_SOCKET_NTHREADS))
    process_group.join(options.BACKEND, device, options.TIMEOUT_MINUTES, options.RENDEZVOUS_MINUTES)
