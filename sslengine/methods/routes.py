"""What the trunk must get besides images: the model's routes say it, by additional_keys."""

from __future__ import annotations

from torch import nn

from sslengine.errors import ConfigError


def expect_input(model: nn.Module, name: str, loss: str, route: str) -> None:
    """Raise unless a route of the model passes this input to the trunk.

    route: an example for the error. A model of another kind than trunk and heads has no routes.
    """
    routes = getattr(model, "routes", ())
    if routes and all(name not in each.additional_keys for each in routes):
        raise ConfigError(
            f"config.MODEL.MULTI_INPUT_HEAD_MAPPING: {loss} needs a route with additional_keys: "
            f"[{name}], such as {route}. Without it the model sees the patches that it predicts."
        )
