"""Rarely used parts; components are imported only when a config names them."""

from sslengine.registry import (
    ENGINES,
    HEADS,
    HOOK_ADAPTERS,
    HOOKS,
    PROTOCOLS,
    TRAIN_STEPS,
    TRANSFORMS,
    TRUNKS,
    WRITERS,
)

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
HOOKS.declare(
    "sslengine.contrib.diagnostics",
    "layer_memory", "model_complexity", "tensorboard_histograms", "unreached_parameters",
)  # fmt: skip
WRITERS.declare("sslengine.contrib.csv_file", "csv")

TRANSFORMS.declare(
    "sslengine.contrib.transforms", "ImgPil2LabTensor",
    "imagenet_augment", "imagenet_no_augment", "lighting", "video_clip_random_resize_crop",
    "video_clip_resize", "video_default_augment", "video_default_no_augment",
)  # fmt: skip

TRAIN_STEPS.declare("sslengine.contrib.mmengine", "model_train_step")
TRAIN_STEPS.declare("sslengine.contrib.multi_optimizer", "multi_optimizer_train_step")

_TRUNKS = "sslengine.contrib.trunks"
TRUNKS.declare(f"{_TRUNKS}.resnet_sk", "resnet_sk")
TRUNKS.declare(f"{_TRUNKS}.convit", "convit")
TRUNKS.declare(f"{_TRUNKS}.alexnet", "alexnet")
TRUNKS.declare(f"{_TRUNKS}.beit", "beit")
TRUNKS.declare(f"{_TRUNKS}.mobilenet_v3", "mobilenetv3_tv", "mobilenetv3_timm")
HEADS.declare(f"{_TRUNKS}.mobilenet_v3_heads", "mobilenet_v3_head", "mobilenet_v3_head_timm")

for _name in ("segmentation", "videos", "copies", "other_sets", "domains", "corruptions"):
    PROTOCOLS.declare(f"sslengine.contrib.{_name}", _name)

_ENGINES = "sslengine.contrib.vissl_benchmarks"
ENGINES.declare(f"{_ENGINES}.svm", "train_svm", "train_svm_low_shot")
ENGINES.declare(f"{_ENGINES}.predictions", "extract_label_predictions")
ENGINES.declare(f"{_ENGINES}.prototypes", "extract_cluster")
ENGINES.declare(f"{_ENGINES}.clusters", "cluster_features_and_label")
ENGINES.declare(f"{_ENGINES}.neighbours", "nearest_neighbor_test")
ENGINES.declare(f"{_ENGINES}.low_shot", "low_shot_test")
ENGINES.declare(f"{_ENGINES}.retrieval", "instance_retrieval_test")
