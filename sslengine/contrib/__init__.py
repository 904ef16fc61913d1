"""Rarely used components: imported only when a config names them."""

from sslengine.registry import ENGINES, HOOK_ADAPTERS, PROTOCOLS, TRAIN_STEPS, WRITERS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
TRAIN_STEPS.declare("sslengine.contrib.mmengine", "model_train_step")
TRAIN_STEPS.declare("sslengine.contrib.multi_optimizer", "multi_optimizer_train_step")
WRITERS.declare("sslengine.contrib.csv_file", "csv")
for _name in ("videos", "copies", "other_sets", "domains", "corruptions"):
    PROTOCOLS.declare(f"sslengine.contrib.{_name}", _name)
ENGINES.declare("sslengine.contrib.vissl_benchmarks.svm", "train_svm", "train_svm_low_shot")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.predictions", "extract_label_predictions")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.prototypes", "extract_cluster")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.clusters", "cluster_features_and_label")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.neighbours", "nearest_neighbor_test")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.low_shot", "low_shot_test")
ENGINES.declare("sslengine.contrib.vissl_benchmarks.retrieval", "instance_retrieval_test")
