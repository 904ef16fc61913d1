"""`low_shot_test`: VISSL's classifiers of few images, on frozen features, for each layer.

config.LOW_SHOT_BENCHMARK.METHOD:

    logistic_regression   multinomial, on features that are standardised by the training images;
                          the mean over draws of DATA.TRAIN.DATA_LIMIT, one for each of SEEDS
    svm                   as train_svm

VISSL's penalty is LAMBDA / images on the sum of the losses. Each LAMBDA is a separate metric;
the best of them, VISSL's number, is chosen on the test images: `best_on_test` in the report.
"""

from __future__ import annotations

from dataclasses import replace

from sslengine.config.resolve import changed
from sslengine.config.sections import read
from sslengine.contrib.vissl_benchmarks.inputs import BenchmarkInputs, benchmark_inputs
from sslengine.contrib.vissl_benchmarks.report import Report
from sslengine.engines.options import LowShotBenchmarkOptions
from sslengine.engines.run import Run
from sslengine.evaluate.features import expect_one_class_each
from sslengine.evaluate.intervals import Spread
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import LinearProbeOptions, SvmOptions
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.svm import svm
from sslengine.registry import register_engine

NAME = "low_shot_test"


@register_engine(NAME)
def low_shot_test(run: Run) -> None:
    """All ranks compute features; rank 0 trains, and the other ranks do not wait."""
    options = read(run.config, LowShotBenchmarkOptions)
    draws = _draws(run, options)
    report = Report(run, NAME)
    for layer in draws[0].layers:
        if options.METHOD == "svm":
            machines = read(run.config, SvmOptions)
            report.add(layer, svm(*draws[0].sets(layer), options=machines))
        else:
            report.add(layer, _regression(draws, layer, options.lambdas))
    report.end()


def _draws(run: Run, options: LowShotBenchmarkOptions) -> list[BenchmarkInputs]:
    """Features of the training images that each seed draws. Collective."""
    where = "config.LOW_SHOT_BENCHMARK.FEATURES.PATH"
    if options.FEATURES.PATH or options.METHOD == "svm":
        return [benchmark_inputs(run, options.FEATURES.PATH, where)]
    found = []
    for seed in options.LOGISTIC_REGRESSION.SEEDS:
        drawn = changed(run.resolved, {"DATA.TRAIN.DATA_LIMIT_SAMPLING.SEED": seed}, NAME)
        found.append(benchmark_inputs(replace(run, resolved=drawn)))
    return found


@protocol("Low-shot regression")
def _regression(draws: list[BenchmarkInputs], layer: str, lambdas: list[float]) -> Outcome:
    scores: dict[str, list[float]] = {f"lambda={each:g} top1": [] for each in lambdas}
    for draw in draws:
        sets = draw.sets(layer)
        expect_one_class_each(sets[1])
        for name, strength in zip(scores, lambdas, strict=True):
            # There is one penalty, so that nothing is chosen.
            only = LinearProbeOptions([strength / len(sets[1]) ** 2], CHOOSE_ON="test")
            scores[name].append(linear_probe(*sets, only).test_accuracy)
    intervals = {name: Spread.over(each) for name, each in scores.items()}
    best = [max(each) for each in zip(*scores.values(), strict=True)]
    details = {"draws": scores, "best_on_test": sum(best) / len(best)}
    return Outcome({name: each.mean for name, each in intervals.items()}, (), details)
