"""The engines: what `engine_name=...` runs."""

from sslengine.registry import ENGINES, PROTOCOLS

ENGINES.declare("sslengine.engines.train", "train")
ENGINES.declare("sslengine.engines.features", "extract_features")
ENGINES.declare("sslengine.engines.evaluate", "evaluate")
ENGINES.declare("sslengine.engines.finetune", "finetune")
ENGINES.declare("sslengine.engines.replay", "replay")
ENGINES.declare("sslengine.engines.sweep", "sweep")

PROTOCOLS.declare("sslengine.engines.on_images", "out_of_set", "view_retrieval")
PROTOCOLS.declare("sslengine.engines.dense", "dense")
