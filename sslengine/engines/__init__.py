"""The engines: what `engine_name=...` runs."""

from sslengine.registry import ENGINES

ENGINES.declare("sslengine.engines.train", "train")
ENGINES.declare("sslengine.engines.extract_features", "extract_features")
ENGINES.declare("sslengine.engines.evaluate", "evaluate")
ENGINES.declare("sslengine.engines.replay", "replay")
