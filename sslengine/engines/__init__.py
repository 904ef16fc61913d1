"""The engines: what `engine_name=...` runs."""

from sslengine.registry import ENGINES

ENGINES.declare("sslengine.engines.train", "train")
ENGINES.declare("sslengine.engines.extract_features", "extract_features")
ENGINES.declare("sslengine.engines.evaluate", "evaluate")
ENGINES.declare("sslengine.engines.finetune", "finetune")
ENGINES.declare("sslengine.engines.replay", "replay")
ENGINES.declare("sslengine.engines.sweep", "sweep")
ENGINES.declare("sslengine.engines.benchmarks.svm", "train_svm", "train_svm_low_shot")
ENGINES.declare("sslengine.engines.benchmarks.predictions", "extract_label_predictions")
ENGINES.declare("sslengine.engines.benchmarks.prototypes", "extract_cluster")
ENGINES.declare("sslengine.engines.benchmarks.clusters", "cluster_features_and_label")
ENGINES.declare("sslengine.engines.benchmarks.retrieval", "instance_retrieval_test")
ENGINES.declare("sslengine.engines.benchmarks.neighbours", "nearest_neighbor_test")
ENGINES.declare("sslengine.engines.benchmarks.low_shot", "low_shot_test")
