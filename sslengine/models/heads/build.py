"""Build the modules of `config.MODEL.HEAD`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from sslengine.errors import ConfigError, UnknownNameError
from sslengine.models.options import HeadOptions
from sslengine.models.routing import HeadSpec, head_specs
from sslengine.registry import HEADS


def build_heads(options: HeadOptions, where: str = "config.MODEL.HEAD") -> nn.ModuleList:
    """Build a module for each entry of PARAMS; an entry that is a list of modules is a chain."""
    path = f"{where}.PARAMS"
    heads = nn.ModuleList(
        _head(spec, f"{path}.{index}")
        for index, spec in enumerate(head_specs(options.PARAMS, path))
    )
    for module in heads.modules():
        if isinstance(module, _BatchNorm):
            module.eps, module.momentum = options.BATCHNORM_EPS, options.BATCHNORM_MOMENTUM
        elif isinstance(module, nn.Linear):
            _scale(module, options.PARAMS_MULTIPLIER)
    return heads


def _head(spec: HeadSpec, where: str) -> nn.Module:
    modules = [_module(name, arguments, where) for name, arguments in spec.modules]
    return nn.Sequential(*modules) if spec.nested else modules[0]


def build_module(entry: Any, where: str) -> nn.Module:
    """Build a single module of PARAMS: `["name", {arguments}]`."""
    (spec,) = head_specs([entry], where)
    return _head(spec, where)


def _module(name: str, arguments: dict[str, Any], where: str) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            made: nn.Module = HEADS.make(name, arguments, where)
    except UnknownNameError:
        raise  # it already names the key
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error
    except RuntimeError as error:
        raise ConfigError(f"{where}.{name}: {arguments}: {error}") from error
    for path, parameter in made.named_parameters():
        if not is_lazy(parameter) and 0 in parameter.shape:
            raise ConfigError(
                f"{where}.{name}: a width in {arguments} is 0: {path} has the shape "
                f"{tuple(parameter.shape)}."
            )
    return made


def _scale(linear: nn.Linear, factor: float) -> None:
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.mul_(factor)
