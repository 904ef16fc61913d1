"""Options of VISSL's benchmarks: `config.CLUSTERFIT`, `LOW_SHOT_BENCHMARK`, `IMG_RETRIEVAL`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import above, at_least, choice, empty_lists
from sslengine.config.sections import section
from sslengine.evaluate.options import FeatureFiles

DEBUGGED = {"TRAINING": 10, "QUERY": 10, "DATABASE": 50}


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


@section("IMG_RETRIEVAL")
@dataclass
class RetrievalOptions:
    # The folder that holds the folders of the datasets.
    DATASET_PATH: str = ""
    # The folder with queries and database: roxford5k, rparis6k, Oxford, Paris, copydays, instre.
    EVAL_DATASET_NAME: str = "Paris"
    # The folder with the images that decide the whitening: one of these, or any folder of images.
    TRAIN_DATASET_NAME: str = "Oxford"
    # A text file with the training images, one path a line, in TRAIN_DATASET_NAME; empty: all.
    WHITEN_IMG_LIST: str = ""
    # Images that are used, the first ones; -1: all.
    NUM_TRAINING_SAMPLES: int = at_least(1, -1, also=-1)
    # As NUM_TRAINING_SAMPLES.
    NUM_QUERY_SAMPLES: int = at_least(1, -1, also=-1)
    # As NUM_TRAINING_SAMPLES.
    NUM_DATABASE_SAMPLES: int = at_least(1, -1, also=-1)
    # A short test: 10 training images, 10 queries, 50 images of the database.
    DEBUG_MODE: bool = False
    # For copydays, search database_and_distractors instead of database.
    USE_DISTRACTORS: bool = False
    # The larger side of images; -1: unchanged. With CENTER_CROP the side of the crop.
    RESIZE_IMG: int = at_least(1, 1024, also=-1)
    # Crop the centre; always for instre.
    CENTER_CROP: bool = False
    # Crop queries to their box, where the dataset has boxes.
    CROP_QUERY_ROI: bool = False
    # Factors of further image sizes, whose descriptors are averaged (not for rmac).
    IMG_SCALINGS: list[float] = above(0, [1.0])
    # Of feature maps: rmac, gem, or empty: all values.
    FEATS_PROCESSING_TYPE: str = choice("", "rmac", "gem", "l2_norm")
    # rmac: the number of sizes of regions.
    SPATIAL_LEVELS: int = at_least(1, 3)
    # gem: the power of the mean.
    GEM_POOL_POWER: float = 4.0
    # Scale descriptors to unit length.
    NORMALIZE_FEATURES: bool = True
    # Whiten descriptors by principal components of those of the training images.
    TRAIN_PCA_WHITENING: bool = True
    # The number of components; -1: all.
    N_PCA: int = at_least(1, 512, also=-1)
    # cosine_similarity, or l2: by Euclidean distance.
    SIMILARITY_MEASURE: str = choice("cosine_similarity", "l2")
    # Write rankings.json and similarity_scores.json into the run's folder.
    SAVE_RETRIEVAL_RANKINGS_SCORES: bool = True
    # Folder of the stored descriptors, which runs may share; empty: `features` in the run's folder.
    FEATURE_EXTRACTION_DIR: str = ""

    def most(self, kind: str) -> int | None:
        """The number of images of TRAINING, QUERY or DATABASE; None: all."""
        chosen: dict[str, int] = {
            "TRAINING": self.NUM_TRAINING_SAMPLES,
            "QUERY": self.NUM_QUERY_SAMPLES,
            "DATABASE": self.NUM_DATABASE_SAMPLES,
        }
        count = DEBUGGED[kind] if self.DEBUG_MODE and chosen[kind] == -1 else chosen[kind]
        return None if count == -1 else count

    def check(self) -> Iterator[str]:
        yield from empty_lists(self, "IMG_SCALINGS")
        if self.FEATS_PROCESSING_TYPE == "rmac":
            if not self.TRAIN_PCA_WHITENING:
                yield "TRAIN_PCA_WHITENING: rmac whitens regions and adds them; set it to true."
            if len(self.IMG_SCALINGS) > 1:
                yield f"IMG_SCALINGS: rmac has one; got {self.IMG_SCALINGS}."
