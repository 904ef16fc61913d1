"""What features are judged: the trained trunk's, and those that need no training.

trained       the weights of the run, or of MODEL.WEIGHTS_INIT
untrained     the same trunk with random weights, of EVALUATE.UNTRAINED seeds
reference     EVALUATE.REFERENCE: other weights, for example of ImageNet
raw pixels    the image itself, averaged to 16 x 16
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import RunOptions
from sslengine.config.sections import read, replaced
from sslengine.data.options import DataOptions
from sslengine.engine.build import build_base_model
from sslengine.engines.features import Compute, Network, layers_of, pixels
from sslengine.engines.run import Run
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.evaluate.options import EvaluateOptions, ReferenceOptions
from sslengine.models.options import TRUNK_WITH_HEADS, ModelOptions, WeightsInitOptions
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.weights.load import Loaded
from sslengine.monitor.run_facts import PIXELS, TRAINED, UNTRAINED
from sslengine.progress import progress
from sslengine.registry import component_key
from sslengine.trained import identify_weights, load_weights

REFERENCE = "reference"


@progress("loading the networks", then="features of train")
def networks_of(run: Run, weights: Path | None) -> tuple[list[Network], Loaded]:
    """Build what is judged. weights: a file; None: those that a library has for the trunk."""
    options, seed = read(run.config, ModelOptions), read(run.config, RunOptions).SEED_VALUE
    evaluate = read(run.config, EvaluateOptions)
    found = []
    for number in range(evaluate.UNTRAINED):
        seed_all(seed + number)
        model = build_base_model(run.config, run.device)
        if not number:
            trained = deepcopy(model)
        name = f"{UNTRAINED} {number + 1}" if number else UNTRAINED
        found.append(_network(name, model, options, {"seeds": [seed + number]}))
    loaded = load_weights(trained, run.config, weights)
    about = {"network": loaded.network, "weights": loaded.source}
    found.insert(0, _network(TRAINED, trained, options, about))
    if evaluate.REFERENCE.WEIGHTS:
        try:
            found.append(_reference(run, evaluate.REFERENCE))
        except SSLEngineError as error:
            raise ConfigError(f"config.EVALUATE.REFERENCE: {error}") from error
    return [*found, Network(PIXELS, pixels, {}, {"pooling": "mean, to 16 x 16"})], loaded


def _network(name: str, model: nn.Module, options: ModelOptions, about: dict[str, Any]) -> Network:
    depends_on = identify_weights(model, options)
    pooled = options.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP
    about = {**about, "trunk": trunk_name(options), "weights_sha256": depends_on["weights_sha256"],
             "pooling": {each[0]: each[1] for each in pooled} or "the trunk's own"}  # fmt: skip
    return Network(name, layers_of(model), depends_on, about)


def trunk_name(options: ModelOptions) -> str:
    if options.BASE_MODEL_NAME != TRUNK_WITH_HEADS:
        return component_key(options.BASE_MODEL_NAME)
    library = options.TRUNK.library()
    return f"{options.TRUNK.NAME} {library.model}" if library else options.TRUNK.NAME


def _reference(run: Run, reference: ReferenceOptions) -> Network:
    values: dict[str, Any] = {
        "MODEL.WEIGHTS_INIT": WeightsInitOptions(PARAMS_FILE=reference.WEIGHTS)
    }
    if reference.TIMM:
        values |= {
            "MODEL.TRUNK.NAME": "timm",
            "MODEL.TRUNK.TIMM": TimmOptions(reference.TIMM, reference.ARGUMENTS),
            "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [],
        }
    config = replaced(run.config, values)
    model = build_base_model(config, run.device)
    loaded = load_weights(model, config)
    transforms = read(run.config, DataOptions).TEST.TRANSFORMS
    own = next((each for each in transforms if each.get("name") == "Normalize"), None)
    given = (own["mean"], own["std"]) if own else ([0.0], [1.0])
    wanted = reference.MEAN, reference.STD
    about = {"network": loaded.network, "weights": loaded.source,
             "normalised": dict(zip(("mean", "std"), wanted))}  # fmt: skip
    made = _network(REFERENCE, model, read(config, ModelOptions), about)
    compute = normalised(made.compute, given, wanted)
    return Network(REFERENCE, compute, {**made.depends_on, "normalised": wanted}, made.about)


def normalised(
    compute: Compute,
    given: tuple[Sequence[float], Sequence[float]],
    wanted: tuple[Sequence[float], Sequence[float]],
) -> Compute:
    """Compute as if images were normalised by `wanted` instead of `given`: mean, deviation."""

    def changed(images: Any) -> dict[str, Tensor]:
        (mean, std), (other, scale) = (
            [torch.tensor(part, device=images.device).view(-1, 1, 1) for part in each]
            for each in (given, wanted)
        )
        if images.shape[1] != len(other):
            raise ConfigError(
                f"config.EVALUATE.REFERENCE: it is for images of {len(other)} channels (MEAN), and "
                f"these have {images.shape[1]}."
            )
        return compute((images * std + mean - other) / scale)

    return changed
