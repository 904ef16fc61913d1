"""The end of a run leaves its page. The run is over: what goes wrong with the page is a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.sections import read
from sslengine.distributed.ranks import is_primary
from sslengine.engines.run import Run
from sslengine.registry import import_dotted

log = logging.getLogger("sslengine")

TRAINS, JUDGES = "train", "evaluate"


@contextmanager
def reported(run: Run) -> Iterator[None]:
    """Write the page when the block ends, also with an error."""
    engine = run.resolved.engine_name
    wanted = engine in (TRAINS, JUDGES) and read(run.config, CheckpointOptions).REPORT_AT_END
    try:
        yield
    finally:
        if wanted and is_primary() and (run.run_dir / "config.yaml").is_file():
            try:  # imported only now: a run starts without libraries that draw
                import_dotted("sslengine.report.end_pages:report_end")(run, engine == TRAINS)
            except Exception as error:  # also what a damaged file of the folder raises
                log.warning("the page of %s was not written: %s", run.run_dir, error)
