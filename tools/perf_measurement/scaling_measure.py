"""Processes on this machine that measure for scaling.py, and what is read out of them."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve

WORKER = Path(__file__).with_name("scaling_worker.py")
# A run on any machine; only the pictures are generated, and few at a time.
PLAIN = (
    "config.MACHINE.DEVICE=cpu",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.DISTRIBUTED.BACKEND=gloo",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.TEST_MODEL=false",
)
IMAGES = 1281167  # of ImageNet: memory banks have a row for each
GENERATED = (
    "config.DATA.TRAIN.DATA_SOURCES=[synthetic]",
    "config.DATA.TRAIN.DATA_PATHS=[]",
    "config.DATA.TRAIN.LABEL_PATHS=[]",
    f"config.DATA.TRAIN.DATA_LIMIT={IMAGES}",
    "config.OPTIMIZER.num_iterations=8",
)
FEW, MORE = 1, 2  # images of a rank


def run(job: dict[str, Any], processes: int) -> list[Any]:
    """The job on so many processes at once; their results, in the order of ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"group": processes > 1, **job}
    started = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **_numbers(rank, processes if job["group"] else 1),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), json.dumps(job)],
                env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    try:
        return _collect(started, waits=job["do"] != "messages")
    finally:
        for process in started:
            process.kill()
            process.communicate()  # closes its pipes


def _numbers(rank: int, ranks: int) -> dict[str, str]:
    rank %= ranks
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}


def _collect(started: Sequence[Any], waits: bool) -> list[Any]:
    if waits:
        for process in started:
            _line(process, "ready")
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
    return [json.loads(_line(process, "result ")) for process in started]


def _line(process: Any, wanted: str) -> str:
    """What stands behind `wanted` in the next line that begins so."""
    others = []
    for line in process.stdout:
        if line.startswith(wanted):
            return str(line.removeprefix(wanted))
        others.append(line)
    raise SystemExit(f"a rank has ended:\n{''.join(others[-30:])}")


# ---- messages of a training step


class Message(NamedTuple):
    """Bytes that a rank brings: `fixed` and `per_image` of its batch; so many times a step."""

    kind: str
    of: str
    fixed: float
    per_image: float
    times: float = 1

    def size(self, images: int) -> float:
        return self.fixed + self.per_image * images


def measure(arguments: Sequence[str], ranks: Sequence[int]) -> dict[str, Any]:
    """Of a config: facts of a step, from real ones on gloo ranks with two batch sizes.

    What a rank brings must not depend on the number of ranks: that is seen, not assumed.
    """
    few = _one(arguments, ranks[0], FEW)
    more = _one(arguments, ranks[0], MORE)
    messages = with_batch(few["messages"], more["messages"])
    pairs = 0.0  # multiplications for each pair of an image here and a rank
    for other in ranks[1:]:
        again = _one(arguments, other, FEW)
        if again["messages"] != few["messages"]:
            raise SystemExit(f"{arguments[0]}: {other} ranks bring other messages than {ranks[0]}.")
        pairs = (again["flops"] - few["flops"]) / (FEW * FEW * (other - ranks[0]))
    images = MORE - FEW
    fixed = {name: few[name] for name in HELD}
    per_image = (more["activations"] - few["activations"]) / images
    flops = few["flops"] / FEW - pairs * FEW * ranks[0]
    return {
        "messages": [list(each) for each in messages],
        "flops_per_image": flops,
        "flops_per_pair": pairs,
        "activations_per_image": per_image,
        **fixed,
    }


def with_config(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What the config itself says of a rank's step."""
    config = resolve([f"config={name}", *overrides]).config
    norms = config.MODEL.SYNC_BN_CONFIG
    group = config.DISTRIBUTED.NUM_PROC_PER_NODE if norms.GROUP_SIZE == -1 else norms.GROUP_SIZE
    return {
        "sync_bn_group": group if norms.CONVERT_BN_TO_SYNC_BN else None,  # 0: all ranks
        "images": config.DATA.TRAIN.BATCHSIZE_PER_REPLICA,
        "amp": bool(config.MODEL.AMP_PARAMS.USE_AMP),
    }


HELD = ("parameters", "gradients", "optimizer", "teacher", "memory")


def _one(arguments: Sequence[str], ranks: int, images: int) -> dict[str, Any]:
    more = [
        *PLAIN,
        *GENERATED,
        f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={images}",
    ]
    found: dict[str, Any] = run({"do": "messages", "arguments": [*arguments, *more]}, ranks)[0]
    return found


def with_batch(few: Sequence[Any], more: Sequence[Any]) -> list[Message]:
    """The messages of two runs, one by one: what depends on the batch, and how much."""
    if [each[:2] for each in few] != [each[:2] for each in more]:
        raise SystemExit("the messages of a step depend on the batch size")
    counted: dict[Message, int] = {}
    for (kind, of, size), (_, _, larger) in zip(few, more, strict=True):
        slope = (larger - size) / (MORE - FEW)
        one = Message(kind, of, size - slope * FEW, slope)
        counted[one] = counted.get(one, 0) + 1
    return [one._replace(times=times) for one, times in counted.items()]


# ---- this machine's own ranks


class Fit(NamedTuple):
    """seconds = alpha + bytes that a rank brings / beta, for one kind and one number of ranks."""

    alpha: float
    beta: float

    def seconds(self, size: float) -> float:
        return self.alpha + size / self.beta


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """The least squares of relative errors: small messages count as much as large ones."""
    sizes, seconds = np.array(points, dtype=float).T
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
    alpha, slope = np.linalg.lstsq(columns, np.ones_like(seconds), rcond=None)[0]
    return Fit(max(float(alpha), 0.0), 1 / max(float(slope), 1e-15))


def fits(ranks: int, sizes: Sequence[int], repeats: int = 30) -> dict[str, Fit]:
    """Of each kind of collective among gloo ranks here."""
    job = {"do": "collectives", "sizes": list(sizes), "repeats": repeats}
    results = run(job, ranks)
    return {
        kind: fit([(size, statistics.median(each[kind][i][1] for each in results))
                   for i, (size, _) in enumerate(results[0][kind])])
        for kind in results[0]
    }  # fmt: skip


def step_seconds(arguments: Sequence[str], processes: int, steps: int, group: bool) -> float:
    """The median over steps of the slowest process, in one run or in so many of one rank each."""
    ranks = processes if group else 1
    job = {
        "do": "steps",
        "steps": steps,
        "group": group and processes > 1,
        "arguments": [*arguments, *PLAIN, f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}"],
    }
    return statistics.median(max(each) for each in zip(*run(job, processes), strict=True))
