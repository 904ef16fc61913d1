#!/usr/bin/env python3
"""Time and memory of kNN and of logistic regression on made features, beside other libraries.

    python tools/perf_measurement/bench_evaluation.py                    # minutes on one core
    python tools/perf_measurement/bench_evaluation.py --full --device cuda
    python tools/perf_measurement/bench_evaluation.py --train 200000 --ways knn product

knn: four values of k from one search; product: the product of the two matrices, in blocks, of which
the largest value of each query is kept. regressions: all penalties; five: five of them, each fitted
alone. scikit-learn's regression is the five, too. Each row runs in a process of its own. `cpu s` is
the time of its threads, which other processes disturb less than the clock does; `MiB` is the peak
above what the features take, of the GPU on cuda.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness

KS = (10, 20, 100, 200)
FULL = {"train": 1_280_000, "queries": 50_000, "samples": 1_280_000, "width": 384, "classes": 1000}
# DINOv2's penalties, as scikit-learn's C.
LOWEST, HIGHEST = -6.0, 5.0


def made(rows: int, given: argparse.Namespace, seed: int) -> tuple[Tensor, Tensor]:
    """Noise around a centre for each class, and the numbers of the classes."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(given.classes, given.width, generator=draw)
    draw.manual_seed(seed)
    labels = torch.randint(given.classes, (rows,), generator=draw)
    features = torch.empty(rows, given.width)
    for start in range(0, rows, 2**16):  # the peak is measured
        some = features[start : start + 2**16]
        torch.randn(some.shape, generator=draw, out=some)
        some.mul_(6.0).add_(centres[labels[start : start + 2**16]])
    return features.to(given.device), labels.to(given.device)


def measure(way: str, given: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(given.threads)
    train = made(given.train if way in KNN else given.samples, given, seed=1)
    test = made(given.queries, given, seed=2) if way in KNN else train
    work = {**KNN, **REGRESSION}[way]
    few = slice(2 * KS[-1])  # imports and starts threads
    work(*(each[few] for each in (*train, *test)), given)
    before, clock, cpu = _peak(given), time.perf_counter(), time.process_time()
    result = work(*train, *test, given)
    if given.device == "cuda":
        torch.cuda.synchronize()
    seconds = {"s": time.perf_counter() - clock, "cpu s": time.process_time() - cpu}
    return {**seconds, "MiB": _peak(given) - before, "result": result}


def _peak(given: argparse.Namespace) -> float:
    if given.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- nearest neighbours: the result is the accuracy for the largest k

Given = argparse.Namespace


def product(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    """The accuracy of the nearest neighbour."""
    test = normalize(test)
    best = torch.full((len(test),), -torch.inf, device=test.device)
    place = torch.zeros(len(test), dtype=torch.long, device=test.device)
    for start in range(0, len(train), 4096):
        block = normalize(train[start : start + 4096])
        for first in range(0, len(test), 1024):
            some = slice(first, first + 1024)
            values, columns = (test[some] @ block.T).max(dim=1)
            better = values > best[some]
            best[some] = torch.where(better, values, best[some])
            place[some] = torch.where(better, columns + start, place[some])
    return 100 * float((labels[place] == wanted).double().mean())


def knn(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    from sslengine.evaluate.knn import knn_curve

    return knn_curve(train, labels, test, wanted, KS)[KS[-1]][0]


def faiss(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    """faiss sorts; the votes are counted as in the others."""
    import faiss as library

    library.omp_set_num_threads(given.threads)
    index = library.IndexFlatIP(given.width)
    index.add(normalize(train).numpy())
    similarities, rows = map(torch.from_numpy, index.search(normalize(test).numpy(), KS[-1]))
    weights = ((similarities - similarities[:, :1]).double() / 0.1).exp()
    votes = weights.new_zeros(len(rows), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[rows], weights)
    return 100 * float((votes.argmax(dim=1) == wanted).double().mean())


# ---- regressions: the result is the training accuracy, the mean over the penalties


def _strengths(given: Given, count: int) -> list[float]:
    """Penalties of the mean loss."""
    costs = 10 ** torch.linspace(LOWEST, HIGHEST, given.penalties, dtype=torch.float64)
    some = costs[torch.linspace(0, given.penalties - 1, count).long()]
    return [1 / (float(cost) * given.samples) for cost in some]


def _fitted(train: Tensor, labels: Tensor, given: Given, groups: list[list[float]]) -> float:
    from sslengine.evaluate.logistic import Samples, fit_path, standardisation

    samples = Samples(train, labels, given.classes, standardisation(train))
    right: list[float] = []
    for penalties in groups:
        for each in fit_path(samples, penalties, tolerance=1e-5).classifiers:
            hits = sum(int((each.scores(rows).argmax(dim=1) == own).sum())
                       for rows, own in samples.pieces(2**14))  # fmt: skip
            right.append(100 * hits / len(samples))
    return sum(right) / len(right)


def five(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    return _fitted(train, labels, given, [[each] for each in _strengths(given, 5)])


def regressions(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    return _fitted(train, labels, given, [_strengths(given, given.penalties)])


def scikit_five(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor, given: Given) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    with threadpool_limits(given.threads):
        rows = StandardScaler().fit_transform(train.double().numpy())
        right = []
        for penalty in _strengths(given, 5):
            judge = LogisticRegression(C=1 / (penalty * len(rows)), tol=1e-5, max_iter=1000)
            right.append(100 * judge.fit(rows, labels.numpy()).score(rows, labels.numpy()))
    return sum(right) / len(right)


Work = Callable[..., float]  # of training and test features and labels, and what is given
KNN: dict[str, Work] = {"product": product, "knn": knn, "faiss": faiss}
REGRESSION: dict[str, Work] = {
    "five": five, "regressions": regressions, "scikit-learn-five": scikit_five,
}  # fmt: skip
ON_CPU = ("faiss", "scikit-learn-five")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__)
    ways = [*KNN, *REGRESSION]
    add = parser.add_argument
    add("--train", type=int, default=50_000)
    add("--queries", type=int, default=2_000)
    add("--samples", type=int, default=10_000, help="of the regressions")
    add("--width", type=int, default=384)
    add("--classes", type=int, default=20)
    add("--penalties", type=int, default=45)
    add("--threads", type=int, default=1)
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--full", action="store_true", help=f"as ImageNet: {FULL}")
    add("--ways", nargs="+", choices=ways, default=ways)
    add("--row", choices=ways, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.full:
        vars(given).update(FULL)
    if given.row:
        print(json.dumps(measure(given.row, given)))
        return 0
    out = ON_CPU if given.device == "cuda" else () if find_spec("faiss") else ("faiss",)
    chosen = [each for each in given.ways if each not in out]
    words = sys.argv[1:] if arguments is None else arguments
    found = {way: harness.child(__file__, words, way, given.threads) for way in chosen}
    print(f"{harness.machine()}\n{'':20}{'s':>10}{'cpu s':>10}{'MiB':>8}{'result':>9}")
    for way, row in found.items():
        print(f"{way:20}{row['s']:>10.1f}{row['cpu s']:>10.1f}{row['MiB']:>8.0f}"
              f"{row['result']:>8.2f}%")  # fmt: skip
    key = "s" if given.device == "cuda" else "cpu s"
    for some, other in (("knn", "product"), ("regressions", "five")):
        if {some, other} <= found.keys():
            print(f"{some} / {other}: {found[some][key] / found[other][key]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
