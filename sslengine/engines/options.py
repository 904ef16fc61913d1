"""Options of engines: `config.EXTRACT_FEATURES`, `FINETUNE`, `HEAD_SWEEP`; of VISSL's benchmarks:
`CLUSTERFIT`, `LOW_SHOT_BENCHMARK`, `IMG_RETRIEVAL`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import above, at_least, choice, empty_lists
from sslengine.config.sections import section
from sslengine.evaluate.options import FeatureFiles

LINEAR, ATTENTIVE = "linear", "attentive"
# Of an attentive head: the form of attentive_probe.
FORMS = {ATTENTIVE: "query", "attentive_block": "block", "attentive_blocks": "blocks"}
# Where the best head is chosen.
HELD_OUT, TEST = "held_out", "test"


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Folder of the features; empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1


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


@section("HEAD_SWEEP")
@dataclass
class SweepOptions:
    """The heads that the engine `sweep` trains on one frozen forward pass."""

    # linear; attentive: a learned query on all tokens; attentive_block: in a transformer block;
    # attentive_blocks: behind blocks of self-attention.
    HEAD: str = choice(LINEAR, *FORMS)
    # Of attentive_blocks: the number of blocks, with that of the query.
    DEPTH: int = at_least(1, 4)
    # Of attentive heads; 0: one for every 64 values of a token.
    ATTENTION_HEADS: int = at_least(0, 0)
    # Features that heads get, `a+b` for two joined; []: with class tokens, those of the last BLOCKS
    # blocks, without and with the mean of the patches; else the final feature; for attentive heads
    # the patches, or the last feature map.
    FEATURES: list[str] = field(default_factory=list)
    # With attentive heads: features N x C that get linear heads, so that one sweep compares them.
    LINEAR_FEATURES: list[str] = field(default_factory=list)
    # The class tokens of how many last blocks; all of a trunk that has fewer.
    BLOCKS: list[int] = at_least(1, [1, 4])
    # Also each of them with the mean of the patches.
    WITH_PATCH_MEAN: bool = True
    # Factors on the learning rate of config.OPTIMIZER: a head for each, and each feature.
    LR: list[float] = above(0, [0.01, 0.1, 1.0])
    # A head for each of them too.
    WEIGHT_DECAY: list[float] = at_least(0, [0.0])
    # Before each head, for each token of attentive ones: none, layer, or batch (no learned scale),
    # which sees the images of its rank, unless MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN is true.
    NORM: str = choice("none", "batch", "layer")
    # Where the best head is chosen: held_out, a share of TRAIN that is not trained on; test, the
    # test images, as some published protocols do.
    SELECT_ON: str = choice(HELD_OUT, TEST)
    # That share of TRAIN.
    HELD_OUT: float = above(0, 0.1, below=1)
    # Also sweep heads on the trunk as it is initialised, for comparison.
    UNTRAINED: bool = False

    def check(self) -> Iterator[str]:
        if self.LINEAR_FEATURES and self.HEAD == LINEAR:
            yield "LINEAR_FEATURES: they belong to attentive heads; name them in FEATURES."
        yield from empty_lists(self, "LR", "WEIGHT_DECAY", "BLOCKS")


# ---- VISSL's benchmarks

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
