"""sslengine: self-supervised training in PyTorch, one YAML and one command."""

__version__ = "0.1.0"
