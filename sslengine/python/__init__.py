"""Training from Python, without YAML: `sslengine.fit`, `predict`, `evaluate_loss`."""
