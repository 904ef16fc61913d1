"""Features of both splits for a benchmark: of files that the config names, or else computed.

What is computed is kept in a store in the run's folder (config.EVALUATE.FEATURES), as the engine
`evaluate` does: after a kill the same command computes only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from sslengine.config.sections import read
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import Compute, Network, StoredSplit, layers_of, store_split
from sslengine.engines.run import Run
from sslengine.errors import ConfigError
from sslengine.evaluate.given import Labelled, layers_in, read_features
from sslengine.evaluate.options import EvaluateOptions
from sslengine.evaluate.store import Store
from sslengine.models.options import ModelOptions
from sslengine.trained import identify_weights, load_here

SPLITS = ("TRAIN", "TEST")


@dataclass(frozen=True)
class BenchmarkInputs:
    layers: Sequence[str]
    read: Callable[[str, str], Labelled]  # of a split and a layer

    def sets(self, layer: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Training features and labels, test features and labels: flat, of labelled images."""
        train, test = (keep_labelled(self.read(split, layer)) for split in SPLITS)
        return train.features.flatten(1), train.targets, test.features.flatten(1), test.targets

    def test_indices(self, layer: str) -> Tensor:
        """The numbers of the test images of these sets."""
        return keep_labelled(self.read("TEST", layer)).indices


def benchmark_inputs(run: Run, folder: str = "", key: str = "") -> BenchmarkInputs:
    """Collective. Only rank 0 has layers. folder: that of the files, which `key` names."""
    if folder:
        return _read_files(Path(folder), key)
    stores = {split: found.stores["trained"] for split, found in stored_splits(run, SPLITS).items()}
    layers = stores["TRAIN"].layers if is_primary() else ()
    return BenchmarkInputs(layers, lambda split, layer: stored_layer(stores[split], layer))


def stored_splits(
    run: Run,
    splits: Sequence[str],
    labels: bool = True,
    outputs: Callable[[nn.Module], Compute] = layers_of,
) -> dict[str, StoredSplit]:
    """Store what the trained model makes of the images, by split. Collective.

    outputs: of the model, what is stored.
    """
    data, options = read(run.config, DataOptions), read(run.config, EvaluateOptions)
    for split in splits if labels else ():
        if getattr(data, split).LABEL_TYPE != "standard":
            raise ConfigError(f"config.DATA.{split}.LABEL_SOURCES: the benchmark needs labels.")
    model, source = load_here(run.config, run.run_dir, run.device)
    run.describe()
    run.say(f"  weights     {source}")
    depends_on = identify_weights(model, read(run.config, ModelOptions))
    if outputs is not layers_of:
        depends_on["outputs"] = outputs.__name__
    network = Network("trained", outputs(model), depends_on)
    folder = Path(options.FEATURES or run.run_dir / "features")
    found: dict[str, StoredSplit] = {}
    classes: Sequence[Classes] = ()
    for split in splits:
        found[split] = store_split(run, split, [network], folder, classes, options.DTYPE)
        classes = found[split].classes
    return found


def keep_labelled(given: Labelled) -> Labelled:
    """Leave out images that have no class."""
    targets = given.targets
    keep = (targets >= 0).any(dim=1) if targets.ndim > 1 else targets >= 0
    return Labelled(given.features[keep], targets[keep], given.indices[keep])


def stored_layer(store: Store, layer: str) -> Labelled:
    return Labelled(store.layer(layer).tensor().float(), store.targets, store.indices)


def _read_files(folder: Path, key: str) -> BenchmarkInputs:
    layers = layers_in(folder, "TRAIN")
    if not layers:
        raise ConfigError(
            f"{key}: {folder} has no features; expected files such as "
            f"rank0_chunk0_train_res5_features.npy of the engine extract_features."
        )
    return BenchmarkInputs(layers if is_primary() else (), partial(read_features, folder))
