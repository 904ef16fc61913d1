"""Check a run before anything is launched, or memory is taken for its weights.

The lists, weights and metrics that the config names must exist. Then one dry step: grey images of
the config's size (of two sizes, if the size depends on the files) go through TRANSFORMS and the
collator, and the batch through trunk, heads and method on torch's meta device, where tensors have
shapes but no values. Each stage adds its key path to what it raises. Custom transforms, sources and
collators are not run; what depends on values, and images whose bands only the files know, is left
to the run.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from PIL import Image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sslengine.checkpoint.contents import has_checkpoints
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.components import owns_network
from sslengine.config.facts import run_facts
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.augment.pipeline import Pipeline, walk_entries
from sslengine.data.augment.transform import Sample
from sslengine.data.decode.files import expect_file
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.dotted import full_metric_name, no_such_metric
from sslengine.engine.build import attach, build_base_model, build_loss, build_train_step
from sslengine.engine.state import shapes
from sslengine.engine.step import TrainStep
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.hooks.options import HooksOptions
from sslengine.meters import MetersOptions
from sslengine.meters.base import build_meters
from sslengine.methods.base import Method, callbacks
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.weights.read import expect_params_file
from sslengine.optim.learner import learner_of
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import chosen_multipliers
from sslengine.registry import COLLATORS, DATA_SOURCES, LOSSES, TRANSFORMS, Registry, component_key

META = torch.device("meta")
# Sources of images of one size (DEFAULT_GRAY_IMG_SIZE), whose labels are numbers.
_FIXED_SIZE_SOURCES = {"synthetic", "shapes", "upright_shapes"}
# Widths and heights of image files of unknown size: most are larger than the crops.
_ANY_SIZE = ((1024, 768), (640, 896))
_OURS = ("sslengine.", "torchvision.")
_LIBRARIES = (*_OURS, "timm.", "torch.nn.")
_NUM_SAMPLES = 2**20  # the size of a method's memory, which allocates nothing on the meta device
# What torch and others raise for a shape.
_REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError)


def check_run(config: DictConfig, engine_name: str) -> None:
    """Raise ConfigError or MissingDataError for what the run would fail of."""
    data, weights = read(config, DataOptions), read(config, ModelOptions).WEIGHTS_INIT
    if engine_name == "train":
        expect_known_metrics(config)
    if weights.PARAMS_FILE and not has_checkpoints(config):  # a run that resumes reads none
        expect_params_file(weights)
    for split in ("TRAIN", "TEST"):
        listed = getattr(data, split).DATA_LIMIT_SAMPLING.LIST
        if listed:
            expect_file(Path(listed), f"config.DATA.{split}.DATA_LIMIT_SAMPLING.LIST")
    expect_fitting_shapes(config)


def expect_known_metrics(config: DictConfig) -> None:
    """Raise ConfigError for a metric that the run's phases, meters or online evaluation lack.

    Other metrics are known when the first phase ends.
    """
    run, hooks = read(config, RunOptions), read(config, HooksOptions)
    groups = {each.name: list(each.names()) for each in build_meters(read(config, MetersOptions))}
    groups["online"] = list(hooks.ONLINE_EVAL.names()) if hooks.ONLINE_EVAL.EVERY else []
    for where, name in (
        ("config.CHECKPOINT.BEST.METRIC", read(config, CheckpointOptions).BEST.METRIC),
        ("config.HOOKS.EARLY_STOPPING.MONITOR", hooks.EARLY_STOPPING.MONITOR),
    ):
        phase, _, rest = full_metric_name(name).partition(".")
        group, _, metric = rest.partition(".")
        if phase == "test" and not (run.TEST_MODEL or run.TEST_ONLY):
            raise ConfigError(f"{where}: {name!r}: the run has no test phases. Set TEST_MODEL.")
        if group in groups and not any(fnmatchcase(metric, each) for each in groups[group]):
            known = [f"{phase}.{group}.{each}" for each in groups[group]]
            raise ConfigError(f"{where}: {no_such_metric(name, known)}")


@contextmanager
def _dry_run() -> Iterator[None]:
    """Raise ConfigError alone, and do not stop at `breakpoint()`: tensors have no values here."""
    hook, sys.breakpointhook = sys.breakpointhook, lambda *_, **__: None
    try:
        yield
    except SSLEngineError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from error
    finally:
        sys.breakpointhook = hook


@_dry_run()
def expect_fitting_shapes(config: DictConfig) -> None:
    """Raise ConfigError if images cannot pass the transforms, the model or the method."""
    data = read(config, DataOptions)
    batch = first_batch(data.TRAIN, "TRAIN")
    if read(config, RunOptions).TEST_MODEL:
        first_batch(data.TEST, "TEST")
    step = build_train_step(config)
    own = not isinstance(step, TrainStep) or type(step).forward is not TrainStep.forward
    if own or config.MODEL.BASE_MODEL_NAME != "multi_input_output_model":
        return  # it chooses the model's inputs itself
    with META:
        model = build_base_model(config, META)
    if batch is None or not isinstance(model, Model):
        return
    made = step.make_sample(batch, data.TRAIN.INPUT_KEY_NAMES, data.TRAIN.TARGET_KEY_NAMES)
    sample: dict[str, Any] = tree_map_only(Tensor, lambda each: each.to(META), made)
    output = _pass_model(model, sample["input"])
    if output is None or data.TRAIN.FIELDS:  # the batch is made of no source, so it has none
        return
    if type(step).losses is TrainStep.losses:
        _pass_method(config, model, output, sample)


def first_batch(options: SplitOptions, split: str) -> dict[str, Any] | None:
    """Return a collated batch of two samples; None if their shapes depend on the files."""
    where = f"config.DATA.{split}"
    for name in map(TRANSFORMS.name_in, walk_entries(options.TRANSFORMS)):
        slow = getattr(TRANSFORMS.get(name), "takes_long_to_make", False)
        if slow or not _is_ours(TRANSFORMS, name):  # creating a custom one may take long
            return None
    pipeline = Pipeline(options.TRANSFORMS, f"{where}.TRANSFORMS")
    sources = options.DATA_SOURCES
    if options.IMAGE_MODE not in ("RGB", "L") or len(sources) != 1:
        return None
    if not _is_ours(DATA_SOURCES, sources[0]):
        return None
    sizes: tuple[tuple[int, int], ...] = _ANY_SIZE
    if sources[0] in _FIXED_SIZE_SOURCES:
        sizes = ((options.DEFAULT_GRAY_IMG_SIZE,) * 2,)
    tries = [_transform(pipeline, options.IMAGE_MODE, *each) for each in enumerate(sizes)]
    errors = [each for each in tries if isinstance(each, DataError)]
    if len(errors) == len(tries):
        raise ConfigError(f"{errors[0]}\n  {where}.IMAGE_MODE is {options.IMAGE_MODE}.")
    one, *others = tries
    ours = _is_ours(COLLATORS, options.COLLATE_FUNCTION)
    if errors or not ours or any(_sizes(each) != _sizes(one) for each in others):
        return None
    collate = COLLATORS.maker(options.COLLATE_FUNCTION, options.COLLATE_FUNCTION_PARAMS, where)
    twin = _transform(pipeline, options.IMAGE_MODE, 1, sizes[0])
    try:
        with streams_kept():
            batch = collate([one, twin])
    except SSLEngineError:
        raise
    except Exception:  # the collator may need fields that only real samples have
        return None
    return batch if isinstance(batch, dict) else None


def _is_ours(registry: Registry[Any], name: str) -> bool:
    return str(getattr(registry.get(name), "__module__", "")).startswith(_OURS)


def _transform(pipeline: Pipeline, mode: str, index: int, size: tuple[int, int]) -> Any:
    """Return the transformed sample, or the error."""
    image = Image.new("RGB", size, (128, 128, 128)).convert(mode)
    sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [index], "label": [0]}
    with streams_kept():
        seed_sample(0, (0, index))
        try:
            return pipeline(sample)
        except DataError as error:
            return error


def _sizes(sample: Any) -> Any:
    return [getattr(each, "shape", getattr(each, "size", None)) for each in sample["data"]]


def _pass_model(model: Model, images: Any) -> Any:
    """Return the model's output; None if it depends on values."""
    entered: list[tuple[str, nn.Module, Any]] = []
    parts: dict[str, nn.Module] = {"config.MODEL.TRUNK": model.trunk}
    parts |= {f"config.MODEL.HEAD.PARAMS.{n}": head for n, head in enumerate(model.heads)}
    handles = [
        part.register_forward_pre_hook(
            lambda part, inputs, where=where: entered.append((where, part, inputs[0]))
        )
        for where, part in parts.items()
    ]
    model.eval()
    try:
        with torch.no_grad():
            return model(images)
    except SSLEngineError:
        raise
    except Exception as error:
        if not entered or not _is_refusal(error, partial(model, images)):
            return None
        where, part, given = entered[-1]
        raise ConfigError(
            f"{where}: {type(part).__name__} cannot take an input of shape {shapes(given)}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def _pass_method(config: DictConfig, model: Model, output: Any, sample: dict[str, Any]) -> Any:
    """Return the method's output; None if it is not run, or fails for another reason.

    Only subclasses of Method are run, and only if the shape of the labels is known.
    """
    name = str(config.LOSS.name)
    thing = LOSSES.get(name) if name else None
    if not isinstance(thing, type) or not issubclass(thing, Method):
        return None
    where, ours = f"config.LOSS.{component_key(name)}", thing.__module__.startswith(_OURS)
    output = output[0] if isinstance(output, list) and len(output) == 1 else output
    call: Callable[[], Any] | None = None
    try:
        with META, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = [run_facts(config).global_batch_size]
            method = build_loss(config, model, _NUM_SAMPLES, META, batch)
            attach(config, method, model)
            method.train()
            multipliers = read(config, OptimizerOptions).multiplier_options()
            chosen_multipliers(learner_of(model, method), multipliers)
            if owns_network(thing):
                call = partial(method, Batch(sample), Step.alone())
            elif takes_sample(method):
                call = partial(method, output, sample, Step.alone())
            elif _has_known_target(config, method):
                call = partial(method, output, sample["target"])
            return None if call is None else call()
    except Exception as error:
        if isinstance(error, ConfigError) or (ours and isinstance(error, SSLEngineError)):
            text = str(error)
            raise ConfigError(text if "config." in text[:9] else f"{where}: {text}") from error
        # A method of the user's may need what its `before_phase` makes.
        if call is None or callbacks(method, "before_phase") or not _is_refusal(error, call):
            return None
        raise ConfigError(
            f"{where}: {thing.__name__} cannot take the model's output, of shape "
            f"{shapes(output)}: {error}\n  Its sizes are set by {where} and "
            f"config.MODEL.HEAD.PARAMS."
        ) from error


def _has_known_target(config: DictConfig, method: nn.Module) -> bool:
    """Return whether labels are numbers, or the method does without; else they may be rows."""
    parameter = list(inspect.signature(method.forward).parameters.values())[1]
    train = config.DATA.TRAIN
    known = train.LABEL_TYPE != "standard" or {*train.DATA_SOURCES} <= _FIXED_SIZE_SOURCES
    return known or parameter.default is not parameter.empty


def _is_refusal(error: Exception, call: Callable[[], Any]) -> bool:
    """Return whether torch or a library refuses a shape, in a computation that failed.

    It may have needed values instead, or a user's code be not ready. So it is repeated with a look
    at each operation, which would slow down a computation that does not fail.
    """
    if not isinstance(error, _REFUSALS) or isinstance(error, (NotImplementedError, SSLEngineError)):
        return False
    watch = _Watch()  # type: ignore[no-untyped-call]
    try:
        with META, torch.no_grad(), watch:
            call()
    except _REFUSALS as again:
        if again is watch.failed or isinstance(again, NotImplementedError):
            return watch.refuses
        *_, (frame, _) = traceback.walk_tb(again.__traceback__)
        module = str(frame.f_globals["__name__"])  # torch itself has torch._assert
        return module == "torch" or module.startswith(_LIBRARIES)
    except Exception:
        return False
    return False


class _Watch(TorchDispatchMode):
    """Note the operation that fails, and whether it refuses shapes: or it needs values, or what is
    not on the meta device."""

    failed: Exception | None = None
    refuses = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return function(*args, **(kwargs or {}))
        except Exception as error:
            given = tree_leaves((args, kwargs))
            tensors = [each for each in given if isinstance(each, Tensor) and each.dim()]
            self.failed = error
            self.refuses = (
                all(each.device == META for each in tensors)
                and not any(isinstance(each, torch.Generator) for each in given)
                and function is not torch.ops.aten._local_scalar_dense.default
                and not isinstance(error, NotImplementedError)
            )
            raise
