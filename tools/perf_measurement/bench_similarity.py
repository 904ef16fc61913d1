#!/usr/bin/env python3
"""Memory and time of info-NCE on one rank among many: the whole matrix, and in parts.

    python tools/perf_measurement/bench_similarity.py

A rank has 128 anchors (64 images, two views) of 128 numbers, and as many candidates as all ranks
together. `whole` is the loss as torch's own operations write it; `parts` is sslengine's. Each row
runs in a process of its own, forward and backward: its peak above what the embeddings take.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

ANCHORS, WIDTH = 128, 128
RANKS = (64, 512, 4096)


def measure(way: str, ranks: int) -> dict[str, float]:
    import torch
    from torch.nn import functional as F

    from sslengine.losses.info_nce import info_nce_in_blocks

    torch.set_num_threads(1)
    torch.manual_seed(0)
    anchors, rows = torch.randn(ANCHORS, WIDTH), torch.randn(ANCHORS * ranks, WIDTH)
    for each in (anchors, rows):
        each.div_(each.norm(dim=1, keepdim=True)).requires_grad_()  # in place: no peak before
    itself = torch.arange(ANCHORS)
    positives = itself.roll(ANCHORS // 2)
    before, began = _peak_mib(), time.perf_counter()
    if way == "whole":
        logits = (anchors @ rows.T / 0.1).scatter(1, itself[:, None], float("-inf"))
        loss = F.cross_entropy(logits, positives)
    else:
        loss = info_nce_in_blocks(anchors, rows, positives, 0.1, itself[:, None])
    loss.backward()
    took = time.perf_counter() - began
    return {"mib": _peak_mib() - before, "ms": 1e3 * took, "loss": loss.item()}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.row:
        print(json.dumps(measure(given.row[0], int(given.row[1]))))
        return 0
    print(f"{'ranks':>6}{'way':>8}{'MiB':>8}{'ms':>8}{'loss':>12}")
    for ranks in given.ranks:
        for way in ("whole", "parts"):
            command = [sys.executable, __file__, "--row", way, str(ranks)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{ranks:>6}{way:>8}{found['mib']:>8.0f}{found['ms']:>8.0f}{found['loss']:>12.6f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
