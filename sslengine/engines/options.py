"""`config.EXTRACT_FEATURES`, `CLUSTERFIT`, `FINETUNE`: the options of engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.sections import one_of, section


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
    DATA_PARTITION: str = "TRAIN"
    # A split whose images get the nearest centroids too; empty: none.
    TEST_PARTITION: str = "TEST"
    # The first part of the files' names.
    DATASET_NAME: str = ""
    # The layer of the features; may be empty if there is one.
    LAYER_NAME: str = ""
    # Principal components, whitened, in place of the features; 0: the features.
    DIMENSIONALITY_REDUCTION: int = 0


@section("CLUSTERFIT")
@dataclass
class ClusterFitOptions:
    # Folder of the results; empty: the run's folder.
    OUTPUT_DIR: str = ""
    # Iterations of k-means; it ends before, if no centroid moves.
    NUM_ITER: int = 50
    # Clusters, which are the classes of the next stage.
    NUM_CLUSTERS: int = 16000
    # Images that decide the centroids, drawn at random; -1: all.
    DATA_LIMIT: int = -1
    DATA_LIMIT_SAMPLING: SampleSeed = field(default_factory=SampleSeed)
    FEATURES: ClusterFeatures = field(default_factory=ClusterFeatures)

    @property
    def splits(self) -> list[str]:
        named = (self.FEATURES.DATA_PARTITION, self.FEATURES.TEST_PARTITION)
        return [each for each in named if each]

    def check(self) -> Iterator[str]:
        for key in ("NUM_ITER", "NUM_CLUSTERS"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        if self.DATA_LIMIT < -1 or self.DATA_LIMIT == 0:
            yield f"DATA_LIMIT: expected 1 or more, or -1 for all; got {self.DATA_LIMIT}."
        features = self.FEATURES
        yield from (f"FEATURES.{t}" for t in one_of(features, "DATA_PARTITION", "TRAIN", "TEST"))
        kinds = ("TRAIN", "TEST", "")
        yield from (f"FEATURES.{text}" for text in one_of(features, "TEST_PARTITION", *kinds))
        if features.DIMENSIONALITY_REDUCTION < 0:
            yield "FEATURES.DIMENSIONALITY_REDUCTION: expected 1 or more, or 0 for none."


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
