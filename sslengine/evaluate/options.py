"""How frozen features are judged: `config.EVALUATE`, `NEAREST_NEIGHBOR`, `LINEAR_PROBE`, `SVM`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from sslengine.config.ranges import above, at_least, choice, choices, empty_lists
from sslengine.config.sections import named, section
from sslengine.registry import LABEL_FREE

# On features, and on the images of another view or set.
ON_FEATURES = (
    "few_shot_knn", "few_shot_linear", "few_labels", "svm", "low_shot_svm", "retrieval",
    "calibration", "per_class",
)  # fmt: skip
ON_IMAGES = (
    "out_of_set", "view_retrieval", "dense", "segmentation", "videos", "copies", "other_sets",
    "domains", "corruptions",
)  # fmt: skip
PROTOCOLS = (*ON_FEATURES, *ON_IMAGES)
# Of a suite of `sslengine judge`: corruptions takes 75 passes over the test images, segmentation
# trains heads; videos, copies, other sets and domains have to be named.
SUITES: dict[str, tuple[str, ...]] = {
    "quick": (),
    "frozen": (*ON_FEATURES, "out_of_set", "view_retrieval", "dense"),
    "full": PROTOCOLS,
}
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression",
)  # fmt: skip
COSTS = 45  # that DINOv2's regression tries
Metric = Literal["cosine", "dot", "euclid"]
DEFAULT_LABEL_FREE = [
    "rankme", "nesum", "alpha_req", "clid", "self_cluster", "uniformity", "id_est",
]  # fmt: skip


def frozen_protocol(
    network: str, entries: list[dict[str, Any]], has_own_trunk: bool = False
) -> dict[str, Any]:
    """Return the keys by which a run's config gives features of its frozen trunk.

    entries: the TRANSFORMS of single images (data/judged_view.py).
    has_own_trunk: the trunk is a part of a custom model, and not MODEL.TRUNK's.
    """
    settings = ("EVAL_MODE_ON", "FREEZE_TRUNK_ONLY", "EXTRACT_TRUNK_FEATURES_ONLY")
    values: dict[str, Any] = {
        **{f"MODEL.FEATURE_EVAL_SETTINGS.{key}": not has_own_trunk for key in settings},
        **({} if has_own_trunk else {"MODEL.BASE_MODEL_NAME": "multi_input_output_model"}),
        "MODEL.MULTI_INPUT_HEAD_MAPPING": [],
        "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
        "MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP": [],
        "MODEL.WEIGHTS_INIT.NETWORK": network,
        "TRAINER.TRAIN_STEP_NAME": "standard_train_step",
        "LOSS.name": "CrossEntropyLoss",
    }
    for split in ("TRAIN", "TEST"):
        values |= {
            f"DATA.{split}.TRANSFORMS": entries,
            f"DATA.{split}.COLLATE_FUNCTION": "default_collate",
            f"DATA.{split}.COLLATE_FUNCTION_PARAMS": {},
            f"DATA.{split}.FIELDS": [],
            f"DATA.{split}.INPUT_KEY_NAMES": ["data"],
            f"DATA.{split}.TARGET_KEY_NAMES": ["label"],
            f"DATA.{split}.DROP_LAST": False,
        }
    return values


@dataclass
class ReferenceOptions:
    # A file of weights to compare with, for example of ImageNet; empty: no reference.
    WEIGHTS: str = ""
    # The name of timm's network that they are for; empty: the run's own trunk.
    TIMM: str = ""
    # Arguments of timm's function: {dynamic_img_size: true} for a ViT and images of another size.
    ARGUMENTS: dict[str, Any] = field(default_factory=dict)
    # By which mean images are normalised for it, instead of the run's.
    MEAN: list[float] = field(default_factory=lambda: [0.485, 0.456, 0.406])
    # By which deviation.
    STD: list[float] = above(0, [0.229, 0.224, 0.225])

    def check(self) -> Iterator[str]:
        if self.TIMM and not self.WEIGHTS:
            yield "TIMM: name a file of its weights too (REFERENCE.WEIGHTS)."
        if len(self.MEAN) != len(self.STD) or not self.MEAN:
            yield "MEAN, STD: expected a number for each channel."


@dataclass
class OutsideOptions:
    # Source of the images of another set, as in DATA.TEST.DATA_SOURCES; empty: none.
    SOURCE: str = ""
    # Where they are, if the source reads a path.
    PATH: str = ""
    # How many of them are used; -1: all.
    LIMIT: int = -1


# Which classes other_sets may answer.
ALL, SHOWN = "all", "shown"


@dataclass
class OtherSetOptions:
    """Labelled images of another set, which test the linear probe of TRAIN's classes."""

    # Source of its images, as in DATA.TEST.DATA_SOURCES.
    SOURCE: str = "disk_folder"
    # Where they are, if the source reads a path.
    PATH: str = ""
    # How many of them are used; -1: all.
    LIMIT: int = -1
    # A JSON file: for each class of the set the classes of TRAIN that are right, by name or number;
    # others are left out. Empty: the names are TRAIN's, or its numbers.
    CLASSES: str = ""
    # A JSON file: for each image's file the classes of TRAIN that are right. Empty: the source's
    # labels.
    LABELS: str = ""
    # Which classes may be answered: all of TRAIN, or those shown in the set.
    ANSWERS: str = choice(ALL, SHOWN)

    def check(self) -> Iterator[str]:
        if self.CLASSES and self.LABELS:
            yield "CLASSES, LABELS: give one of them; LABELS has the classes of TRAIN itself."


@dataclass
class CopiesOptions:
    # Folder with original/ and folders of changed copies, such as Copydays' strong/; empty: none.
    PATH: str = ""
    # Folder of further images that are searched; empty: none.
    DISTRACTORS: str = ""
    # Folder of other images, by which descriptors are whitened; empty: they are not.
    WHITENING: str = ""
    # Side in pixels, to which images are resized.
    SIDE: int = at_least(1, 320)


@dataclass
class DenseOptions:
    """Segmentation by frozen maps; `shapes` has masks itself."""

    # Folder of PNG masks of TRAIN's images, which have their names; a number for each pixel.
    MASKS_TRAIN: str = ""
    # The same for TEST.
    MASKS_TEST: str = ""
    # Classes of pixels that do not count.
    IGNORED: list[int] = field(default_factory=lambda: [255])
    # Images of each split that are used, drawn at random; -1: all.
    IMAGES: int = at_least(1, 500, also=-1)
    # Side of the images in pixels; 0: that of the other protocols.
    SIDE: int = at_least(0, 0)
    # The feature of the trunk; empty: its last map.
    LAYER: str = ""


@dataclass
class SegmentationOptions:
    """A linear head is trained on the maps and masks of DENSE."""

    # Steps of the training; DINOv3 takes 40,000 on 20,210 images.
    ITERATIONS: int = at_least(1, 2000)
    # Images of a step.
    BATCH: int = at_least(1, 16)
    # The largest learning rate.
    LR: float = above(0, 1e-3)
    # Of AdamW, apart from the gradient.
    WEIGHT_DECAY: float = at_least(0, 1e-2)


@dataclass
class VideosOptions:
    """The masks of each video's first frame are carried to the others."""

    # Folder laid out as DAVIS-2017: JPEGImages/480p, Annotations/480p, ImageSets/2017/val.txt;
    # empty: none.
    PATH: str = ""
    # Short side in pixels, to which frames are resized.
    SIDE: int = at_least(1, 480)
    # The long side is rounded down to a multiple of this: of the trunk's patch.
    MULTIPLE: int = at_least(1, 64)
    # The feature of the trunk; empty: its last map.
    LAYER: str = ""


@dataclass
class CorruptionOptions:
    # Which of the fifteen.
    KINDS: list[str] = choices([*CORRUPTIONS], *CORRUPTIONS)
    # Which of 1 to 5.
    SEVERITIES: list[int] = at_least(1, [1, 2, 3, 4, 5], at_most=5)

    def check(self) -> Iterator[str]:
        yield from empty_lists(self, "KINDS", "SEVERITIES")


@section("EVALUATE")
@dataclass
class EvaluateOptions:
    # Folder of the features, which several runs may share; empty: `features` in the run's folder.
    FEATURES: str = ""
    # How they are stored: float32, float16, bfloat16.
    DTYPE: str = choice("float32", "float16", "bfloat16")
    # Metrics that need no labels (docs/label_free.md); [] for none.
    LABEL_FREE: list[str] = named(LABEL_FREE, DEFAULT_LABEL_FREE)
    # Also compute: few_shot_knn, few_shot_linear, few_labels, svm, low_shot_svm, retrieval,
    # calibration, per_class, out_of_set, view_retrieval, dense, segmentation, videos, copies,
    # other_sets, domains, corruptions.
    PROTOCOLS: list[str] = choices([], *PROTOCOLS)
    # How kNN and the linear probe are done: empty: as NEAREST_NEIGHBOR and LINEAR_PROBE say;
    # dinov2: as DINOv2 publishes them, in place of both sections.
    PUBLISHED: str = choice("", "dinov2")
    # Random networks that the untrained trunk's scores are the mean of.
    UNTRAINED: int = at_least(1, 1)
    REFERENCE: ReferenceOptions = field(default_factory=ReferenceOptions)
    # Images that out_of_set detects.
    OUTSIDE: OutsideOptions = field(default_factory=OutsideOptions)
    # Of other_sets, each under a name of your own.
    OTHER_SETS: dict[str, OtherSetOptions] = field(default_factory=dict)
    COPIES: CopiesOptions = field(default_factory=CopiesOptions)
    # Of the images' table (csv_filelist, huggingface_dataset): what `domains` leaves out in turn.
    DOMAIN_COLUMN: str = ""
    DENSE: DenseOptions = field(default_factory=DenseOptions)
    SEGMENTATION: SegmentationOptions = field(default_factory=SegmentationOptions)
    VIDEOS: VideosOptions = field(default_factory=VideosOptions)
    # Of the test images, for the protocol corruptions.
    CORRUPTIONS: CorruptionOptions = field(default_factory=CorruptionOptions)


@dataclass
class FeatureFiles:
    # Folder of features that the engine `extract_features`, or VISSL's, has written; empty: they
    # are computed.
    PATH: str = ""


@section("NEAREST_NEIGHBOR")
@dataclass
class NearestNeighborOptions:
    # A neighbour of similarity s votes with exp(s / SIGMA).
    SIGMA: float = above(0, 0.1)
    # Number of neighbours that vote; a list gives one score for each number.
    TOPK: Any = 200
    # Compare by cosine; false (VISSL's default): by dot product, which favours long features.
    L2_NORM_FEATS: bool = True
    FEATURES: FeatureFiles = field(default_factory=FeatureFiles)

    @property
    def neighbours(self) -> list[int]:
        return self.TOPK if isinstance(self.TOPK, list) else [self.TOPK]

    @property
    def metric(self) -> Metric:
        return "cosine" if self.L2_NORM_FEATS else "dot"

    def check(self) -> Iterator[str]:
        if not self.neighbours or not all(map(_is_count, self.neighbours)):
            yield f"TOPK: expected a number of neighbours, or a list of them; got {self.TOPK!r}."


@section("LINEAR_PROBE")
@dataclass
class LinearProbeOptions:
    # L2 penalties to try; the accuracy on held-out training samples decides.
    PENALTIES: list[float] = above(
        0, [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5]
    )
    # The penalty is added to the mean of the samples' losses, or to their sum (1 / C).
    PENALTY_ON: str = choice("mean", "sum")
    # The share of the training samples that is held out for that choice.
    HELD_OUT: float = above(0, 0.2, below=1)
    # Of tables and Hugging Face datasets: images with the same value here are held out together.
    # Empty: DATA.HOLD_OUT.GROUP_COLUMN, if TEST is a part of TRAIN's images.
    GROUP_COLUMN: str = ""
    # train: held-out training samples choose; test: the test images do, so the score is the
    # best of all penalties, and too good. The row of the report says so.
    CHOOSE_ON: str = choice("train", "test")
    # Bring each number of the features to mean 0 and deviation 1, by the training samples.
    STANDARDISE: bool = True
    # Maximum iterations of the solver for each classifier.
    MAX_ITERATIONS: int = at_least(1, 1000)

    def check(self) -> Iterator[str]:
        yield from empty_lists(self, "PENALTIES")


def published(
    name: str, neighbours: NearestNeighborOptions, probe: LinearProbeOptions
) -> tuple[NearestNeighborOptions, LinearProbeOptions]:
    """dinov2: kNN of k = 10 to 200 at temperature 0.07; of 45 values of C the best one on a tenth
    of the training images, on unchanged features."""
    if name != "dinov2":
        return neighbours, probe
    costs = (10 ** (-6 + 11 * step / (COSTS - 1)) for step in range(COSTS))
    return (
        NearestNeighborOptions(SIGMA=0.07, TOPK=[10, 20, 100, 200]),
        LinearProbeOptions(
            [1 / each for each in costs], PENALTY_ON="sum", HELD_OUT=0.1,
            STANDARDISE=False, GROUP_COLUMN=probe.GROUP_COLUMN,
        ),
    )  # fmt: skip


@dataclass
class CostOptions:
    # Costs to try; for each class cross-validation on the training images decides.
    costs_list: list[float] = above(
        0, [0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0]
    )
    # If above 0, its powers are tried too.
    base: float = -1.0
    # The first exponent, and the one after the last.
    power_range: list[int] = field(default_factory=lambda: [4, 20])

    @property
    def all(self) -> list[float]:
        powers = range(*self.power_range) if self.base > 0 else ()
        return list(dict.fromkeys([*self.costs_list, *(self.base**each for each in powers)]))


@dataclass
class LowShotOptions:
    # Numbers of the draws of training images: each is a seed.
    sample_inds: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    # Images of each class.
    k_values: list[int] = at_least(1, [1, 2, 4, 8, 16, 32, 64, 96])
    # Where the cost is chosen: `train`, on training images that are not drawn; `test`, on the test
    # images, as VISSL does.
    choose: str = choice("train", "test")

    def check(self) -> Iterator[str]:
        yield from empty_lists(self, "sample_inds", "k_values")


@section("SVM")
@dataclass
class SvmOptions:
    """Linear SVMs, each for one class against all others."""

    # Scale features to unit length.
    normalize: bool = True
    # Numbers of the classes; [] for all.
    cls_list: list[int] = field(default_factory=list)
    # squared_hinge or hinge.
    loss: str = choice("squared_hinge", "hinge")
    # l2 or l1.
    penalty: str = choice("l2", "l1")
    # Solve the dual problem.
    dual: bool = True
    # Iterations of the solver.
    max_iter: int = at_least(1, 2000)
    # Parts of the training images for the choice of the cost.
    cross_val_folds: int = at_least(2, 3)
    costs: CostOptions = field(default_factory=CostOptions)
    # Train again, although the run's folder holds the result.
    force_retrain: bool = False
    low_shot: LowShotOptions = field(default_factory=LowShotOptions)

    def check(self) -> Iterator[str]:
        solved = (self.loss, self.penalty, self.dual)
        if self.loss == "hinge" and solved != ("hinge", "l2", True):
            yield "loss: hinge is solved with penalty l2 and dual: true alone."
        if self.penalty == "l1" and solved != ("squared_hinge", "l1", False):
            yield "penalty: l1 is solved with loss squared_hinge and dual: false alone."
        if not self.costs.all:
            yield "costs: expected one cost or more."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
