#!/usr/bin/env python3
"""What gradcache_train_step saves and costs: peak memory and time of a step, beside the standard.

    python tools/perf_measurement/bench_gradcache.py

SimCLR with a small vision transformer on generated images. Each row runs in a process of its
own, for its memory is that process's peak above what it had before the first step. Rows take
turns, so that a busy machine slows all of them alike; the median of three rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = (  # (step, images of a batch, chunk: views at once)
    ("standard_train_step", 32, 0),
    ("standard_train_step", 128, 0),
    ("gradcache_train_step", 32, 16),
    ("gradcache_train_step", 128, 16),
    ("gradcache_train_step", 128, 64),
)
STEPS = 3


def config(step: str, batch: int, chunk: int, folder: str) -> dict[str, Any]:
    trainer: dict[str, Any] = {"TRAIN_STEP_NAME": step}
    if chunk:
        trainer[step] = {"CHUNK_SIZE": chunk}
    transformer = {
        "IMAGE_SIZE": 32, "PATCH_SIZE": 4, "NUM_LAYERS": 3, "NUM_HEADS": 3, "HIDDEN_DIM": 192,
        "MLP_DIM": 768, "CLASSIFIER": "token",
    }  # fmt: skip
    return {
        "DATA": {
            "NUM_DATALOADER_WORKERS": 0,
            "TRAIN": {
                "DATA_SOURCES": ["synthetic"], "DEFAULT_GRAY_IMG_SIZE": 32,
                "RANDOM_SYNTHETIC_IMAGES": True, "DATA_LIMIT": batch * STEPS,
                "BATCHSIZE_PER_REPLICA": batch,
                "TRANSFORMS": [{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"}],
                "COLLATE_FUNCTION": "simclr_collator", "DROP_LAST": True,
            },
        },
        "TEST_MODEL": False,
        "TRAINER": trainer,
        "MODEL": {
            "TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": transformer},
            "HEAD": {"PARAMS": [["mlp", {"dims": [192, 128]}]]},
        },
        "LOSS": {"name": "simclr_info_nce_loss"},
        "OPTIMIZER": {"num_epochs": 1},
        "DISTRIBUTED": {"BACKEND": "gloo", "NUM_PROC_PER_NODE": 1},
        "MACHINE": {"DEVICE": "cpu"},
        "CHECKPOINT": {"DIR": folder},
    }  # fmt: skip


def measure(step: str, batch: int, chunk: int) -> dict[str, float]:
    """In this process: peak MiB above the start, milliseconds of a step (not of the first)."""
    import torch

    from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
    from sslengine.config.resolve import resolve_dict
    from sslengine.engine.services import Services
    from sslengine.engine.task import SelfSupervisionTask

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = resolve_dict(config(step, batch, chunk, folder))
        task = SelfSupervisionTask(
            run.config, Path(folder), torch.device("cpu"), hooks=[], services=Services()
        )
        task.prepare()
        task.start_phase()
        before, times = _peak_mib(), []
        for _ in range(STEPS):
            began = time.perf_counter()
            task.step()
            times.append(time.perf_counter() - began)
        task.close()
    return {"mib": _peak_mib() - before, "ms": 1000 * statistics.median(times[1:])}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.row:
        step, batch, chunk = given.row
        print(json.dumps(measure(step, int(batch), int(chunk))))
        return 0
    found: list[list[dict[str, float]]] = [[] for _ in ROWS]
    for _ in range(given.rounds):
        for results, row in zip(found, ROWS, strict=True):
            command = [sys.executable, __file__, "--row", *map(str, row)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(done.stderr)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'step':<24}{'batch':>6}{'chunk':>7}{'MiB':>8}{'ms':>9}{'ms an image':>14}")
    for results, (step, batch, chunk) in zip(found, ROWS, strict=True):
        mib, ms = (statistics.median(each[key] for each in results) for key in ("mib", "ms"))
        print(f"{step:<24}{batch:>6}{chunk or '-':>7}{mib:>8.0f}{ms:>9.0f}{ms / batch:>14.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
