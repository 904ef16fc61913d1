"""Check a run's shapes before anything is launched, read or allocated.

A grey image of the config's size (or of two sizes, if the size depends on the files) goes through
TRANSFORMS and the collator; the batch goes through trunk, heads and method on torch's meta device,
where tensors have shapes but no values. So a misspelled argument, a Normalize of three channels
for grey images, a head of a wrong width, a head that does not fit the method and an unknown
feature are reported in seconds. Custom transforms and collators are not run. Of stored images,
whose bands and type only the files know, the collator alone is checked here.
"""

from __future__ import annotations

import pdb
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from PIL import Image

from sslengine.checkpoint.contents import has_checkpoints
from sslengine.config.facts import run_facts
from sslengine.config.options import RunOptions, TrainerOptions
from sslengine.config.sections import read
from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.plan import Plan
from sslengine.data.augment.transform import Sample
from sslengine.data.loading import current_sample
from sslengine.data.loading.seeding import seed_sample, streams_kept
from sslengine.data.manifest.few_labels import expect_list
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.launch.meta_pass import FIXED_SIZE_SOURCES, META, pass_alone, pass_through
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.weight_content import expect_file_of
from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS, Registry
from sslengine.task.build import build_base_model
from sslengine.train_steps.samples import multi_input_sample, single_input_sample

_SAMPLES_OF = {
    "standard_train_step": single_input_sample,
    "multi_input_train_step": multi_input_sample,
    "pirl_train_step": multi_input_sample,
}
# Widths and heights of image files of unknown size: most are larger than the crops.
_ANY_SIZE = ((1024, 768), (640, 896))
_OURS = ("sslengine.", "torchvision.")


@contextmanager
def _ignore_breakpoints() -> Iterator[None]:
    """Do not stop in a user's code here, where tensors have no values: the run itself stops."""
    before = sys.breakpointhook, pdb.set_trace
    sys.breakpointhook = pdb.set_trace = lambda *_, **__: None
    try:
        yield
    finally:
        sys.breakpointhook, pdb.set_trace = before


@_ignore_breakpoints()
def expect_fitting_shapes(config: DictConfig) -> None:
    """Raise ConfigError if images cannot pass the transforms, the model or the method."""
    data = read(config, DataOptions)
    splits = ["TRAIN", *(["TEST"] if read(config, RunOptions).TEST_MODEL else [])]
    batches = {split: first_batch(getattr(data, split), split) for split in splits}
    build = _SAMPLES_OF.get(read(config, TrainerOptions).TRAIN_STEP_NAME)
    if build is None or config.MODEL.BASE_MODEL_NAME != "multi_input_output_model":
        return  # this step chooses the model's inputs itself
    if sys.gettrace() is not None:  # by a debugger, which would stop here first
        return
    with META:
        model = build_base_model(config, META)
    batch = batches["TRAIN"]
    train = data.TRAIN
    if batch is None or train.IMAGE_MODE == "stored" or not isinstance(model, Model):
        return
    try:
        sample = build(batch, train.INPUT_KEY_NAMES, train.TARGET_KEY_NAMES)
    except DataError as error:
        raise ConfigError(str(error)) from error
    pass_through(config, model, sample)
    facts = run_facts(config)
    shared = facts.sync_batch_norm and facts.world_size > 1
    if train.BATCHSIZE_PER_REPLICA == 1 and not shared:
        alone = first_batch(train, "TRAIN", images=1)
        if alone is not None:
            keys = train.INPUT_KEY_NAMES, train.TARGET_KEY_NAMES
            pass_alone(config, model, build(alone, *keys))


def expect_lists(config: DictConfig) -> None:
    """Raise MissingDataError if a list of the images to use is not there."""
    data = read(config, DataOptions)
    for split in ("TRAIN", "TEST"):
        listed = getattr(data, split).DATA_LIMIT_SAMPLING.LIST
        if listed:
            expect_list(Path(listed), f"config.DATA.{split}.DATA_LIMIT_SAMPLING.LIST")


def expect_weights(config: DictConfig) -> None:
    """Raise ConfigError if the file to start from is not there. A run that resumes reads none."""
    weights = read(config, ModelOptions).WEIGHTS_INIT
    if weights.PARAMS_FILE and not has_checkpoints(config):
        expect_file_of(weights)


def first_batch(options: SplitOptions, split: str, images: int = 2) -> dict[str, Any] | None:
    """Return a collated batch of one or two samples; None if their shapes depend on the files."""
    where = f"config.DATA.{split}"
    for name in map(TRANSFORMS.name_in, _entries(options.TRANSFORMS)):
        slow = getattr(TRANSFORMS.get(name), "takes_long_to_make", False)
        if slow or not _is_ours(TRANSFORMS, name):  # creating a custom one may take long
            return None
    pipeline = Pipeline(options.TRANSFORMS, f"{where}.TRANSFORMS")
    if not _can_be_run(options):
        return None
    sizes: tuple[tuple[int, int], ...] = _ANY_SIZE
    if set(options.DATA_SOURCES) <= set(FIXED_SIZE_SOURCES):
        sizes = ((options.DEFAULT_GRAY_IMG_SIZE,) * 2,)
    tries = [_transformed(pipeline, options, size, number) for number, size in enumerate(sizes)]
    errors = [each for each in tries if isinstance(each, DataError)]
    if errors and options.IMAGE_MODE == "stored":
        return None  # a guess: the launch tries an image of the files
    if len(errors) == len(tries):
        before, numbered, after = str(errors[0]).partition(" failed on sample ")
        text = f"{before}: {after.partition(': ')[2]}" if numbered else before
        raise ConfigError(f"{text}\n  {where}.IMAGE_MODE is {options.IMAGE_MODE}.")
    one, *others = tries
    if errors or any(_shapes(each) != _shapes(one) for each in others):
        return None
    if not _is_ours(COLLATORS, options.COLLATE_FUNCTION):
        return None
    collate = COLLATORS.maker(options.COLLATE_FUNCTION, options.COLLATE_FUNCTION_PARAMS, where)
    twin = _transformed(pipeline, options, sizes[0], 1)
    try:
        with streams_kept():
            batch = collate([one, twin][:images])
    except SSLEngineError as error:
        raise ConfigError(str(error)) from error
    except Exception:  # the collator may need fields that only real samples have
        return None
    return batch if isinstance(batch, dict) else None


def _can_be_run(options: SplitOptions) -> bool:
    """Whether it is known how many bands images have, and the only source ships with sslengine."""
    return (
        len(options.DATA_SOURCES) == 1
        and all(_is_ours(DATA_SOURCES, name) for name in options.DATA_SOURCES)
        and (options.IMAGE_MODE in ("RGB", "L") or bool(_bands(options)))
    )


def _bands(options: SplitOptions) -> int:
    """A guess for stored images, which collators hardly depend on: as many as Normalize has means;
    0 if nothing says it."""
    means = (entry.get("mean") for entry in _entries(options.TRANSFORMS) if "std" in entry)
    return next((len(mean) for mean in means if isinstance(mean, Sequence)), 0)


def _entries(entries: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of the list, and those nested in their arguments."""
    for entry in entries:
        if isinstance(entry, Mapping) and "name" in entry:
            yield entry
            for value in entry.values():
                yield from _entries(value if isinstance(value, list) else ())


def _is_ours(registry: Registry[Any], name: str) -> bool:
    return str(getattr(registry.get(name), "__module__", "")).startswith(_OURS)


def _transformed(
    pipeline: Pipeline, options: SplitOptions, size: tuple[int, int], index: int
) -> Sample | DataError:
    image: Any
    transformed: Callable[[Sample], Sample]
    if options.IMAGE_MODE == "stored":
        kind = np.float32 if options.limits else np.uint8
        image = np.zeros((*size[::-1], _bands(options)), kind)
        transformed = Plan(pipeline, build_backend("pil"), limits=options.limits)
    else:
        image = Image.new("RGB", size, (128, 128, 128)).convert(options.IMAGE_MODE)
        transformed = pipeline
    sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [index], "label": [0]}
    with streams_kept():
        seed_sample(0, (0, index))
        current_sample.note(index)
        try:
            return transformed(sample)
        except DataError as error:
            return error
        finally:
            current_sample.note()


def _shapes(sample: Any) -> Any:
    return [getattr(each, "shape", getattr(each, "size", None)) for each in sample["data"]]
