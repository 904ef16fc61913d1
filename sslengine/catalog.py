"""Importing this module declares the names of all components that ship with sslengine.

The module of a component is imported when its name is first used.
"""

# ruff: noqa: F401

from sslengine import (
    contrib,
    data,
    engine,
    engines,
    hooks,
    meters,
    methods,
    models,
    monitor,
    optim,
)
from sslengine.checkpoint import options as checkpoint_options
from sslengine.config import options as config_options
from sslengine.data import options as data_options
from sslengine.engines import options as engine_options
from sslengine.evaluate import label_free
from sslengine.evaluate import options as evaluation_options
from sslengine.hooks import options as hook_options
from sslengine.launch import options as launch_options
from sslengine.losses import options as loss_options
from sslengine.models import options as model_options
from sslengine.optim import options as optim_options
