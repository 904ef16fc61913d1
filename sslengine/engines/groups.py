"""Groups of training images (of a patient, of a video) that a probe holds out together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.hold_out import numbers_of_groups
from sslengine.data.options import DataOptions
from sslengine.engines.run import Run
from sslengine.evaluation.options import LinearProbeOptions

WHERE = "config.LINEAR_PROBE.GROUP_COLUMN"


def group_column(data: DataOptions, probe: LinearProbeOptions) -> str:
    """Its name; empty: no groups are known."""
    of_test = data.HOLD_OUT.GROUP_COLUMN if data.HOLD_OUT.SHARE else ""
    return probe.GROUP_COLUMN or of_test


def groups_of(run: Run, column: str) -> Tensor | None:
    """A number for each image of TRAIN, the same within a group."""
    if not column:
        return None
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
    numbers = numbers_of_groups(dataset.sources[0].column(column, WHERE))
    return torch.from_numpy(numbers[np.asarray(dataset.rows)])
