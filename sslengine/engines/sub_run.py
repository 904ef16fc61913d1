"""Training inside a run's folder: in a folder named by all that its result depends on.

The same run finds its checkpoints and resumes; other weights or another recipe are another folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sslengine.checkpoint.manifest import sha256_of
from sslengine.config.resolve import changed
from sslengine.config.stored import is_fixed
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.dotted import leaves
from sslengine.engines.run import Run

# In addition to the model and the loss. The file of weights counts by its content.
DEPENDS_ON = (
    "OPTIMIZER.", "DATA.TRAIN.", "DATA.TEST.", "DATA.HOLD_OUT.", "SEED_VALUE", "HEAD_SWEEP.",
    "MODEL.WEIGHTS_INIT.NETWORK", "MODEL.WEIGHTS_INIT.SKIP_LAYERS",
)  # fmt: skip


def digest_of(weights: Path | None) -> str:
    """The SHA-256 of a file or of a folder's files; empty without one. Collective."""
    return broadcast_object(_digest(weights) if weights and is_primary() else "")


def folder_of(run: Run, parent: str, name: str, digest: str) -> Path:
    return run.run_dir / parent / f"{name}-{_key(run, digest)}"


def sub_run(run: Run, folder: Path, values: Mapping[str, object]) -> Run:
    """Train with these values, by their paths below `config`."""
    if is_primary():
        folder.mkdir(parents=True, exist_ok=True)
    # Its metrics have other names than those that the run expects.
    own = {"CHECKPOINT.DIR": str(folder), "EXPECTED_RESULTS": []}
    return replace(run, resolved=changed(run.resolved, {**values, **own}, "train"), run_dir=folder)


def _key(run: Run, digest: str) -> str:
    tree: Any = OmegaConf.to_container(run.config)
    of = {
        path: value
        for path, value in leaves(tree)
        if (is_fixed(path) or path.startswith(DEPENDS_ON))
        and not run.resolved.origins.get(f"config.{path}", "").startswith("derived:")
    }
    listed = run.config.DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST
    if listed and Path(listed).is_file():  # it counts by its content
        of["DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST"] = sha256_of(Path(listed))
    text = json.dumps([digest, of], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _digest(weights: Path) -> str:
    if weights.is_file():
        return sha256_of(weights)
    digest = hashlib.sha256()
    for path in sorted(each for each in weights.rglob("*") if each.is_file()):
        digest.update(f"{path.relative_to(weights)} {sha256_of(path)}\n".encode())
    return digest.hexdigest()
