"""The verdicts of `sslengine check`: what each YAML file is, and what is wrong with it."""

from __future__ import annotations

import argparse
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from sslengine.command import documents
from sslengine.command.checked_files import (
    FOREIGN,
    OVERLAY,
    PART,
    RUN,
    File,
    compositions,
    find,
)
from sslengine.command.config_trials import Trial, Verdict, Worker
from sslengine.progress import progress
from sslengine.screen_console import LiteralConsole

PRELOADED = ["torchvision", "timm", "sslengine.command.config_trials"]
# Runs that a part is tried with before it counts as wrong.
MOST_BASES = 4


def run(options: argparse.Namespace) -> int:
    """0 if every file is right, else 1."""
    files = [file for path in options.paths for file in find(path)]
    console = LiteralConsole(width_of_file=140, stderr=options.json)
    results: list[tuple[File, Verdict]] = []
    with progress("checking files", len(files), "files") as step:
        for number, (file, verdict) in enumerate(verdicts(files, options), start=1):
            results.append((file, verdict))
            if verdict.problem or options.all:
                tell(number, len(files), file, verdict, console)
            step(1)
    for line in summary(results):
        console.print(line, soft_wrap=True)
    if options.json:
        documents.show([as_json(*each) for each in results])
    return int(any(verdict.problem and not verdict.left_out for _, verdict in results))


def verdicts(files: Sequence[File], options: argparse.Namespace) -> Iterator[tuple[File, Verdict]]:
    """Yield verdicts: runs first, since other files are checked with the right ones, and with those
    that only lack their data source."""
    # The runs that parts may belong to need not be among the files to check.
    roots = {file.root: None for file in files}
    known = dict.fromkeys([*(file for root in roots for file in find(root)), *files])
    right, nearly = [file for file in known if file.is_run], list[File]()
    # Imported once, by the fork server of the processes.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    own, workers = threading.local(), []

    def work(file: File) -> Verdict:
        if not hasattr(own, "worker"):
            own.worker = Worker()
            workers.append(own.worker)
        return check(file, (right, nearly), options, own.worker)

    try:
        for chosen in ([f for f in files if f.is_run], [f for f in files if not f.is_run]):
            for file, verdict in _stage(chosen, work, options.jobs):
                if verdict.problem and file in right:
                    right.remove(file)
                if verdict.source_alone:
                    nearly.append(file)
                yield file, verdict
            while workers:  # the next stage has its own threads
                workers.pop().end()
    finally:
        for worker in workers:
            worker.end()


def _stage(files: Sequence[File], work: Any, jobs: int) -> Iterator[tuple[File, Verdict]]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, file): file for file in files}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check(
    file: File, groups: Sequence[Sequence[File]], options: argparse.Namespace, worker: Worker
) -> Verdict:
    """Return the verdict on a file; a part is right if it is with one run of these groups."""
    if file.role == FOREIGN:
        return Verdict((), "it has no `config:`: a file of another program", left_out=True)
    verdicts: list[Verdict] = []
    how = file.root, options.train, tuple(options.set), options.trust_config
    for runs in groups[:1] if file.is_run else groups:
        problems: list[str] = []
        for arguments in compositions(file, runs)[:MOST_BASES]:
            verdicts.append(worker.judge(Trial(arguments, *how), options.timeout))
            if not verdicts[-1].problem:
                return verdicts[-1]
            if verdicts[-1].problem in problems:
                break  # the same error with another run: the part causes it
            problems.append(verdicts[-1].problem)
    if verdicts:
        return verdicts[0]
    if file.folder:
        return Verdict((file.option,), "no run was found that this part could belong to")
    return Verdict(
        (),
        f"a file at the top of the folder is added to a run by its `defaults` alone, and no right "
        f"run has /config/{file.name} there. In a folder below it +config/FOLDER={file.name} adds "
        f"it too.",
    )


def state(verdict: Verdict) -> str:
    return "left out" if verdict.left_out else "wrong" if verdict.problem else "right"


def as_json(file: File, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": file.name, "folder": str(file.root), "role": file.role, "verdict": state(verdict),
        "problem": verdict.problem, "tried_as": verdict.arguments, "seconds": verdict.seconds,
    }  # fmt: skip


def tell(number: int, of: int, file: File, verdict: Verdict, console: LiteralConsole) -> None:
    line = f"[{number}/{of}] {state(verdict):8} {file.role:7} {file.name}  {verdict.seconds:.1f} s"
    console.print(line, soft_wrap=True)
    if verdict.problem:
        tried = " ".join(verdict.arguments)
        reason = _brief(verdict.problem).replace("\n", "\n      ")
        console.print(f"      {reason}\n      tried as: {tried}".rstrip(), soft_wrap=True)


def summary(results: Sequence[tuple[File, Verdict]]) -> Iterator[str]:
    tried = [verdict for _, verdict in results if not verdict.left_out]
    wrong = [verdict for verdict in tried if verdict.problem]
    reasons = Counter(_brief(verdict.problem).split("\n")[0] for verdict in wrong)
    for reason, count in reasons.most_common(10):
        if count > 1:
            yield f"{count} times: {reason}"
    for role in (RUN, OVERLAY, PART, FOREIGN):
        of_role = [verdict for file, verdict in results if file.role == role]
        bad = sum(bool(each.problem) for each in of_role)
        if role == FOREIGN and of_role:
            yield f"{len(of_role)} files of other programs left out"
        elif of_role:
            yield f"{len(of_role)} {role}s: {len(of_role) - bad} right, {bad} wrong"
    if len(families := Counter(_family(file) for file, _ in results)) > 1:
        wrong_of = Counter(_family(file) for file, verdict in results if verdict in wrong)
        left_out = Counter(_family(file) for file, verdict in results if verdict.left_out)
        yield f"{'family':44} right  wrong"
        for name in sorted(families.keys() - {n for n in families if families[n] == left_out[n]}):
            right = families[name] - wrong_of[name] - left_out[name]
            yield f"{name:44} {right:5}  {wrong_of[name]:5}"
    yield f"{len(tried)} files: {len(tried) - len(wrong)} right, {len(wrong)} wrong"


def _family(file: File) -> str:
    """Return the first two folders of the file's name."""
    return "/".join(file.name.split("/")[:-1][:2]) or "."


def _brief(problem: str) -> str:
    """The problem without its indented hints; running the file prints the full text."""
    return "\n".join(line for line in problem.splitlines() if not line.startswith("  "))
