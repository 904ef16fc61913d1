"""The files that a run writes into its folder, and how a run's folder is recognised.

A folder belongs to a run if it holds one of these; other files may then be in it too:

    config.yaml, config_<engine>.yaml    with the first two lines that sslengine writes
    .lock                                with the host and the process that last held it
    checkpoints/                         with a checkpoint and its manifest

A run may also use a folder that is empty, or that holds only the files of a run that was
ended before it wrote its config.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from sslengine.checkpoint.manifest import is_checkpoint, path_for
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import DistributedOptions
from sslengine.config.sections import read
from sslengine.errors import ConfigError
from sslengine.trust import expect_trust, is_closed

# The files of one run: they are moved aside together when another run takes the folder.
RESULTS = re.compile(
    r"signature\.json|"
    r"config(_\w+)?\.yaml|environment(_\w+)?\.json|log(_rank\d+)?\.txt|metrics\.(jsonl|csv)"
    r"|checkpoints|images|tb_logs|trackers|superseded|profile|flight_recorder"
    r"|features|finetune|predictor|weights|evaluation\.json|judgements|report(\.html)?"
    r"|status\.json|(starts|spectra)\.jsonl|command\.sh"
    r"|(train_svm(_low_shot)?|low_shot_test|nearest_neighbor_test|instance_retrieval_test|extract_label_predictions)\.json|kNN_.*\.npy"
)
# All that is in the folder of a run that has not begun.
UNUSED = re.compile(r"log(_rank\d+)?\.txt|\.lock")
# Not moved: runs that were moved aside, the lock (it is held), and the runs of a sweep.
_NOT_MOVED = re.compile(r"earlier|\.lock|sweep_\d+")
UNFINISHED = re.compile(rf"\.({RESULTS.pattern})\.\d+\.tmp")
# Written before config.yaml. Not `images`: a user may have made a folder of that name.
_FIRST = re.compile(r"log(_rank\d+)?\.txt|checkpoints|flight_recorder")
# Written by file systems and desktops, and by a shell or a scheduler that logs a run's output.
_BY_OTHERS = re.compile(r"\.nfs.*|\.DS_Store|\.snapshot|lost\+found|.+\.(out|err|log)")
_HEAD = ("# @package _global_", "engine_name: ")


def run_folder(config: DictConfig) -> Path:
    options = read(config, CheckpointOptions)
    folder = Path(options.DIR).expanduser()
    if not options.APPEND_DISTR_RUN_ID:
        return folder
    run_id = read(config, DistributedOptions).RUN_ID
    if run_id == "auto":
        raise ConfigError(
            "config.CHECKPOINT.APPEND_DISTR_RUN_ID: set config.DISTRIBUTED.RUN_ID too. With `auto` "
            "a restarted run would not find its folder."
        )
    return folder / run_id.replace("/", "_").replace(":", "_")


def has_checkpoints(config: DictConfig) -> bool:
    """Tell whether the run has saved any; False where no file system takes the folder's name."""
    folder = os.path.join(run_folder(config), "checkpoints")
    return os.path.isdir(folder) and bool(os.listdir(folder))


def foreign(folder: Path) -> list[str]:
    """List the files because of which no run may use this folder; [] if one may."""
    if not folder.exists() or _is_known(folder):
        return []
    names = sorted(path.name for path in folder.iterdir())
    expected = (_FIRST, _NOT_MOVED, UNFINISHED, _BY_OTHERS)
    return [name for name in names if not any(each.fullmatch(name) for each in expected)]


def _is_known(folder: Path) -> bool:
    if any(map(_is_ours, (*folder.glob("config.yaml"), *folder.glob("config_*.yaml")))):
        return True
    with suppress(OSError, ValueError):
        holder = json.loads((folder / ".lock").read_text())
        if isinstance(holder, dict) and {"host", "pid"} <= holder.keys():
            return True
    checkpoints = filter(is_checkpoint, (folder / "checkpoints").glob("model_*"))
    return any(path_for(each).is_file() for each in checkpoints)


def _is_ours(config: Path) -> bool:
    with suppress(OSError, ValueError), config.open(encoding="utf-8") as file:
        return all(file.readline(200).startswith(begin) for begin in _HEAD)
    return False


def results(folder: Path) -> list[Path]:
    """List the files of the folder's run; checkpoints last: they mark a run's folder."""
    found = [path for path in folder.iterdir() if RESULTS.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name == "checkpoints", path.name))


def expect_no_links_out(folder: Path, training: bool = False) -> None:
    """Raise UntrustedError, before a folder that was opened without trust is written to, if an
    entry links to another place: files would be written there.

    training: also for `checkpoints` and `weights`, which nothing else writes.
    """
    top = os.path.realpath(folder)
    for path in folder.rglob("*") if is_closed() else ():
        first, *below = path.relative_to(folder).parts
        if first == "checkpoints" and below:  # links there are replaced, and not followed
            continue
        only_read = not training and not below and first in ("checkpoints", "weights")
        target = os.path.realpath(path) if path.is_symlink() else top
        if not only_read and os.path.commonpath([top, target]) != top:
            expect_trust(f"files would be written to {target}, where it links", str(path))
