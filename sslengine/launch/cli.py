"""The command line.

python tools/run_distributed_engines.py config=quickstart/simclr [config.KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from sslengine import catalog, startup
from sslengine.config.compose import overrides as assign
from sslengine.config.compose import sweep
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.config.show import show
from sslengine.data.loading import lean_torchvision
from sslengine.errors import ConfigError, Preempted, SSLEngineError
from sslengine.launch.auto import settle_widths
from sslengine.screen import say

INTERRUPTED = 130  # as shells have it: 128 + SIGINT
_DESCRIPTION = """\
Run a config.

  config=quickstart/simclr                   the YAML file, without .yaml
  +config/pretrain/simclr/models=resnext101  a second file, merged on top of the first
  config.OPTIMIZER.num_epochs=10             set a value; in a list: config.A.B.0=x
  config.SEED_VALUE=0,1,2                    a sweep: one run each, in sweep_0, sweep_1, ...
  engine_name=extract_features               the engine to run; default: train

Files are searched in --config-dir, ./configs and the configs that ship with sslengine."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine",
        allow_abbrev=False,  # --config is not --config-dir
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as above")
    parser.add_argument(
        "--config-dir", action="append", default=[], metavar="DIR", help="a folder of your own YAML"
    )
    parser.add_argument(
        "--show", "--dry-run", action="store_true", dest="show",
        help="print the resolved config with the origin of each changed value, without running it",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="with --show: print also the meaning of every key"
    )
    parser.add_argument(
        "--trust-pickle", action="append_const", dest="overrides_of_flags",
        const="config.MODEL.WEIGHTS_INIT.TRUST_PICKLE=true",
        help="load MODEL.WEIGHTS_INIT.PARAMS_FILE even if that runs code: only for your own files",
    )  # fmt: skip
    parser.add_argument(
        "--trust-config", action="store_true",
        help="let the config.yaml of a run's folder (--config-dir) run code: only for your own",
    )  # fmt: skip
    return parser


@startup.pause_garbage_collection()
def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status. 0: done. 1: the run failed. 2: the config is wrong, nothing started.
    75: the run was asked to end and is saved; the same command resumes it. 130: Ctrl-C elsewhere.
    """
    assert catalog  # importing it declares all names
    assert lean_torchvision  # a second less of imports
    startup.begin()
    parser = make_parser()
    given = parser.parse_intermixed_args(arguments)
    if given.all and not given.show:
        parser.error("--all: needs --show")
    if not given.show:
        startup.announce("reading the config, importing torch")
    overrides = [*given.overrides, *(given.overrides_of_flags or ())]
    try:
        runs = settled(overrides, given.config_dir, given.trust_config)
        if given.show:
            print("\n---\n".join(show(run, given.all) for run in runs), end="")  # noqa: T201
            return 0
    except SSLEngineError as error:
        say(f"error: {error}", sys.stderr)
        return 2
    return start(runs)


def settled(
    overrides: Sequence[str], config_dirs: Sequence[str], trusted: bool = False
) -> list[Resolved]:
    """Resolve every run of a sweep, with all that is known before it starts."""
    return [settle_widths(run) for run in resolve_all(overrides, config_dirs, trusted)]


def start(runs: Sequence[Resolved]) -> int:
    """Run all of them, or submit them to SLURM. Return the exit status, as main does."""
    try:
        return run_all(runs)
    except (SSLEngineError, KeyboardInterrupt) as error:
        return ended_by(error)


def ended_by(error: SSLEngineError | KeyboardInterrupt, printed: bool = True) -> int:
    """Return the exit status. printed: say what it was."""
    if isinstance(error, KeyboardInterrupt):  # not during training, which would have saved
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    if printed:
        say(str(error) if isinstance(error, Preempted) else f"error: {error}", sys.stderr)
    if isinstance(error, Preempted):
        return os.EX_TEMPFAIL
    return 2 if isinstance(error, ConfigError) else 1


def run_all(runs: Sequence[Resolved]) -> int:
    """Do the same, and raise what goes wrong."""
    # Imported only now: --help and a config error should not wait for torch.
    from sslengine.launch import local

    return local.run_all(runs)


def resolve_all(
    overrides: Sequence[str], config_dirs: Sequence[str], trusted: bool = False
) -> list[Resolved]:
    """Resolve every run of a sweep; all are checked before any begins."""
    choices = list(sweep(overrides))
    runs = [_open(each, config_dirs, trusted) for each in choices]
    if len(runs) == 1:
        return runs
    folders = [f"{run.config.CHECKPOINT.DIR}/sweep_{index}" for index, run in enumerate(runs)]
    return [
        _open([*each, *assign({"CHECKPOINT.DIR": folder})], config_dirs, trusted)
        for each, folder in zip(choices, folders, strict=True)
    ]


def _open(arguments: Sequence[str], config_dirs: Sequence[str], trusted: bool) -> Resolved:
    flags = [f"--config-dir={each}" for each in config_dirs] + ["--trust-config"] * trusted
    return replace(open_named(arguments, config_dirs, trusted), arguments=(*arguments, *flags))
