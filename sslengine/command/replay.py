"""After a run stopped at a non-finite value: repeat its last steps and name the module.

    sslengine replay runs/mine

It repeats the steps since the newest checkpoint and checks every module's output and gradient. The
run's own files do not change. A folder that you did not train may come from anyone: if its
config.yaml names Python code, other files or environment variables, --trust-config is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sslengine.command.arguments import RUN, TRUST_CONFIG, Argument, make_parser
from sslengine.config.compose import overrides, sweep
from sslengine.config.run_folder import open_run
from sslengine.launch.cli import start

ARGUMENTS = (
    replace(RUN, flag="folder", metavar=None, help="the run's folder"),
    Argument("overrides", "as for a run", metavar="KEY=VALUE", nargs="*"),
    TRUST_CONFIG,
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser(__name__).parse_intermixed_args(arguments)
    folder = overrides({"CHECKPOINT.DIR": str(given.folder)})
    what = ["engine_name=replay", *folder, *given.overrides]
    return start([open_run(given.folder, each, trusted=given.trust_config) for each in sweep(what)])
