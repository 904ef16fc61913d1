"""Pass a batch of the right shapes through trunk, heads and method, on the meta device.

Shapes that do not fit raise ConfigError with the key path. Computations that depend on values, or
fail for another reason, are not checked.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from sslengine.config.facts import run_facts
from sslengine.config.sections import read
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.methods.base import Method
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.models.model import Model
from sslengine.models.single_rows import is_of_single_row, said_of
from sslengine.optim.learner import learner_of
from sslengine.optim.multipliers import chosen_multipliers
from sslengine.optim.options import OptimizerOptions
from sslengine.registry import LOSSES, component_key
from sslengine.task.build import attach, build_loss
from sslengine.task.state import shapes

META = torch.device("meta")
# Sources of images of one size (DEFAULT_GRAY_IMG_SIZE), whose labels are numbers.
FIXED_SIZE_SOURCES = ("synthetic", "shapes", "upright_shapes")
# Words in torch's errors about shapes. Other errors may come from the meta device.
_SHAPE_WORDS = (
    "shape",
    "size",
    "channel",
    "dimension",
    "must match",
    "same reduction dim",
    "elements not",
)
_NUM_SAMPLES = 2**20  # the size of a method's memory, which allocates nothing on the meta device


def pass_through(config: DictConfig, model: Model, sample: dict[str, Any]) -> None:
    """model: on the meta device."""
    sample = _on_meta(sample)
    output = _through_model(model, sample["input"])
    if output is not None:
        through_method(config, model, output, sample)


def pass_alone(config: DictConfig, model: Model, sample: dict[str, Any]) -> None:
    """Of one image, in training: a batch norm may get one row."""
    sample = _on_meta(sample)
    try:
        with torch.no_grad():
            through_method(config, model, model.train()(sample["input"]), sample)
    except Exception as error:
        if is_of_single_row(error):
            batch = "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA is 1: a batch"
            raise ConfigError(said_of(batch)) from error


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(META)
    if isinstance(value, Mapping):
        return {key: _on_meta(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_on_meta(each) for each in value]
    return value


def _through_model(model: Model, images: Any) -> Any:
    """Return the model's output; None if it depends on values."""
    entered: list[tuple[str, Any]] = []
    parts: list[tuple[str, nn.Module]] = [("config.MODEL.TRUNK", model.trunk)]
    parts += [(f"config.MODEL.HEAD.PARAMS.{n}", head) for n, head in enumerate(model.heads)]
    handles = [
        part.register_forward_pre_hook(
            lambda _, inputs, where=where: entered.append((where, inputs[0]))
        )
        for where, part in parts
    ]
    try:
        with torch.no_grad():
            return model.eval()(images)
    except SSLEngineError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        if not entered or not _is_shape_error(error):
            return None  # the computation may depend on values
        where, given = entered[-1]
        part = dict(parts)[where]
        raise ConfigError(
            f"{where}: {type(part).__name__} cannot take an input of shape {shapes(given)}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def through_method(config: DictConfig, model: Model, output: Any, sample: dict[str, Any]) -> Any:
    """Return the method's output; None if it is not run, or fails for another reason.

    Only subclasses of Method are run, and only if the shape of the labels is known.
    """
    name = str(config.LOSS.name)
    thing = LOSSES.get(name) if name else None
    if not isinstance(thing, type) or not issubclass(thing, Method):
        return None
    one_batch = [run_facts(config).global_batch_size]
    output = output[0] if isinstance(output, list) and len(output) == 1 else output
    try:
        with META, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method = build_loss(config, _NUM_SAMPLES, META, one_batch)
            attach(config, method, model)
            method.train()
            entries = read(config, OptimizerOptions).multiplier_options()
            chosen_multipliers(learner_of(model, method), entries)
            if takes_sample(method):
                return method(output, sample, Step.alone())
            return method(output, _target(config, method, sample))
    except Exception as error:
        # A user's method may raise such an error because `before_phase` has not been called.
        ours = thing.__module__.startswith("sslengine.") and isinstance(error, SSLEngineError)
        if ours or isinstance(error, ConfigError):
            raise ConfigError(str(error)) from error
        if not _is_shape_error(error):
            return None
        where = f"config.LOSS.{component_key(name)}"
        raise ConfigError(
            f"{where}: {thing.__name__} cannot take the model's output, of shape "
            f"{shapes(output)}: {error}\n  {_where_to_look(config, where, str(error))}"
        ) from error


def _target(config: DictConfig, method: nn.Module, sample: dict[str, Any]) -> Any:
    """Return the target for a method of (output, target); LookupError if its shape is unknown."""
    parameter = list(inspect.signature(method.forward).parameters.values())[1]
    train = config.DATA.TRAIN
    known = train.LABEL_TYPE != "standard" or {*train.DATA_SOURCES} <= {*FIXED_SIZE_SOURCES}
    if not known and parameter.default is parameter.empty:
        raise LookupError("labels may be numbers or rows")
    return sample["target"]


def _is_shape_error(error: Exception) -> bool:
    text = str(error)
    named = any(each in text for each in _SHAPE_WORDS)
    return named and "meta" not in text.lower() and not isinstance(error, SSLEngineError)


def _where_to_look(config: DictConfig, where: str, text: str) -> str:
    """Name the options whose value is one of the sizes in the error."""
    sizes = set(map(int, re.findall(r"\d+", text)))
    places = ("config.MODEL.HEAD.PARAMS", where)
    found = [
        f"{path} ({value})"
        for place in places
        for path, value in _numbers(OmegaConf.select(config, place.removeprefix("config.")), place)
        if value in sizes
    ]
    return f"These sizes are set by: {', '.join(found) or ' and '.join(places)}."


def _numbers(value: Any, path: str) -> Iterator[tuple[str, int]]:
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value)
    if isinstance(value, int) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, (list, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _numbers(each, f"{path}.{key}")
