"""`config.IMG_RETRIEVAL`: VISSL's benchmark of instance retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.sections import one_of, section

DEBUGGED = {"TRAINING": 10, "QUERY": 10, "DATABASE": 50}


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
    NUM_TRAINING_SAMPLES: int = -1
    # As NUM_TRAINING_SAMPLES.
    NUM_QUERY_SAMPLES: int = -1
    # As NUM_TRAINING_SAMPLES.
    NUM_DATABASE_SAMPLES: int = -1
    # A short test: 10 training images, 10 queries, 50 images of the database.
    DEBUG_MODE: bool = False
    # For copydays, search database_and_distractors instead of database.
    USE_DISTRACTORS: bool = False
    # The larger side of images; -1: unchanged. With CENTER_CROP the side of the crop.
    RESIZE_IMG: int = 1024
    # Crop the centre; always for instre.
    CENTER_CROP: bool = False
    # Crop queries to their box, where the dataset has boxes.
    CROP_QUERY_ROI: bool = False
    # Factors of further image sizes, whose descriptors are averaged (not for rmac).
    IMG_SCALINGS: list[float] = field(default_factory=lambda: [1.0])
    # Of feature maps: rmac, gem, or empty: all values.
    FEATS_PROCESSING_TYPE: str = ""
    # rmac: the number of sizes of regions.
    SPATIAL_LEVELS: int = 3
    # gem: the power of the mean.
    GEM_POOL_POWER: float = 4.0
    # Scale descriptors to unit length.
    NORMALIZE_FEATURES: bool = True
    # Whiten descriptors by principal components of those of the training images.
    TRAIN_PCA_WHITENING: bool = True
    # The number of components; -1: all.
    N_PCA: int = 512
    # cosine_similarity, or l2: by Euclidean distance.
    SIMILARITY_MEASURE: str = "cosine_similarity"
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
        yield from one_of(self, "FEATS_PROCESSING_TYPE", "rmac", "gem", "", "l2_norm")
        yield from one_of(self, "SIMILARITY_MEASURE", "cosine_similarity", "l2")
        if self.SPATIAL_LEVELS < 1:
            yield f"SPATIAL_LEVELS: expected 1 or more, got {self.SPATIAL_LEVELS}."
        if self.RESIZE_IMG < 1 and self.RESIZE_IMG != -1:
            yield f"RESIZE_IMG: expected 1 or more, or -1; got {self.RESIZE_IMG}."
        if self.N_PCA < 1 and self.N_PCA != -1:
            yield f"N_PCA: expected 1 or more, or -1 for all; got {self.N_PCA}."
        if not self.IMG_SCALINGS or min(self.IMG_SCALINGS) <= 0:
            yield f"IMG_SCALINGS: expected factors above 0, got {self.IMG_SCALINGS}."
        if self.FEATS_PROCESSING_TYPE == "rmac":
            if not self.TRAIN_PCA_WHITENING:
                yield "TRAIN_PCA_WHITENING: rmac whitens regions and adds them; set it to true."
            if len(self.IMG_SCALINGS) > 1:
                yield f"IMG_SCALINGS: rmac has one; got {self.IMG_SCALINGS}."
        for kind in DEBUGGED:
            if self.most(kind) == 0:
                yield f"NUM_{kind}_SAMPLES: expected 1 or more, or -1 for all."
