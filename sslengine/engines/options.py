"""`config.EXTRACT_FEATURES`, `CLUSTERFIT`, `FINETUNE`, `LOW_SHOT_BENCHMARK`: options of engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import above, at_least, choice, empty_lists
from sslengine.config.sections import section
from sslengine.evaluate.options import FeatureFiles


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Folder of the features; empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1


@dataclass
class SampleSeed:
    # The seed of the draw, and of the first centroids.
    SEED: int = 0


@dataclass
class ClusterFeatures:
    # Compute the features; false: read those in PATH.
    EXTRACT: bool = False
    # Folder of features that the engine `extract_features`, or VISSL's, has written.
    PATH: str = "."
    # The split whose features are clustered.
    DATA_PARTITION: str = choice("TRAIN", "TEST")
    # A split whose images get the nearest centroids too; empty: none.
    TEST_PARTITION: str = choice("TEST", "TRAIN", "")
    # The first part of the files' names.
    DATASET_NAME: str = ""
    # The layer of the features; may be empty if there is one.
    LAYER_NAME: str = ""
    # Principal components, whitened, in place of the features; 0: the features.
    DIMENSIONALITY_REDUCTION: int = at_least(0, 0)


@section("CLUSTERFIT")
@dataclass
class ClusterFitOptions:
    # Folder of the results; empty: the run's folder.
    OUTPUT_DIR: str = ""
    # Iterations of k-means; it ends before, if no centroid moves.
    NUM_ITER: int = at_least(1, 50)
    # Clusters, which are the classes of the next stage.
    NUM_CLUSTERS: int = at_least(1, 16000)
    # Images that decide the centroids, drawn at random; -1: all.
    DATA_LIMIT: int = at_least(1, -1, also=-1)
    DATA_LIMIT_SAMPLING: SampleSeed = field(default_factory=SampleSeed)
    FEATURES: ClusterFeatures = field(default_factory=ClusterFeatures)

    @property
    def splits(self) -> list[str]:
        named = (self.FEATURES.DATA_PARTITION, self.FEATURES.TEST_PARTITION)
        return [each for each in named if each]


@section("FINETUNE")
@dataclass
class FinetuneOptions:
    # The name of the row in the table, and the start of the folders' names in `finetune`.
    NAME: str = "finetune"
    # Also train the same network from random weights, for comparison.
    UNTRAINED: bool = True

    def check(self) -> Iterator[str]:
        if not re.fullmatch(r"[\w.%+-]+", self.NAME) or self.NAME.startswith("."):
            yield f"NAME: expected letters, digits, and - _ . % +; got {self.NAME!r}."


@dataclass
class LowShotRegression:
    # The penalty, times the number of training images; of a list each is a metric.
    LAMBDA: Any = above(0, 0.025)
    # A draw of DATA.TRAIN.DATA_LIMIT for each.
    SEEDS: list[int] = field(default_factory=lambda: [0])

    def check(self) -> Iterator[str]:
        yield from empty_lists(self, "LAMBDA", "SEEDS")


@section("LOW_SHOT_BENCHMARK")
@dataclass
class LowShotBenchmarkOptions:
    # logistic_regression or svm, whose options are config.SVM.
    METHOD: str = choice("logistic_regression", "svm")
    LOGISTIC_REGRESSION: LowShotRegression = field(default_factory=LowShotRegression)
    FEATURES: FeatureFiles = field(default_factory=FeatureFiles)

    @property
    def lambdas(self) -> list[float]:
        given = self.LOGISTIC_REGRESSION.LAMBDA
        return [*given] if isinstance(given, list) else [given]
