"""The verdicts of `sslengine check`: what each YAML file is, and what is wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.text import Text

from sslengine import catalog
from sslengine.command import documents
from sslengine.command.new_file import expect_writable
from sslengine.config.compose import compose
from sslengine.config.files import readable_path
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.config.yaml_text import load
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.errors import OutputError, SSLEngineError
from sslengine.services.order import Services
from sslengine.task import build
from sslengine.task.task import SelfSupervisionTask
from sslengine.trainer import loop
from sslengine.trust import closed

PRELOADED = ["torchvision", "timm", "sslengine.catalog", "sslengine.task.task"]
STEPS = 2
SMALL = [
    f"config.OPTIMIZER.num_iterations={STEPS}",
    "config.MACHINE.DEVICE=cpu",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.DATA_SOURCES=[synthetic]",
    "config.DATA.TRAIN.DATA_PATHS=[]",
    "config.DATA.TRAIN.LABEL_PATHS=[]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_IMAGES=true",
    "config.DATA.TRAIN.DEFAULT_GRAY_IMG_SIZE=40",
    "config.DATA.TRAIN.DATA_LIMIT=16",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=4",
    "config.TEST_MODEL=false",
    # Options of files, which generated images do not have.
    *(
        f"config.DATA.TRAIN.{key}={json.dumps(getattr(SplitOptions(), key))}"
        for key in OF_ENCODED_SOURCES
    ),
]
# Sections that only an engine reads that does not train; VISSL names it on the command line.
ENGINE_OF = {
    "SVM": "train_svm",
    "NEAREST_NEIGHBOR": "nearest_neighbor_test",
    "IMG_RETRIEVAL": "instance_retrieval_test",
    "CLUSTERFIT": "cluster_features_and_label",
    "LOW_SHOT_BENCHMARK": "low_shot_test",
    "RANKING": "extract_features",
}
RUN, OVERLAY, PART, FOREIGN = "run", "overlay", "part", "foreign"
# Runs that a part is tried with before it counts as wrong.
MOST_BASES = 4
# What a line of --resume begins with.
KEPT = '{"of": ['
WITH_LABELS = [
    "config.DATA.TRAIN.LABEL_SOURCES=[synthetic]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_LABELS=3",
]


@dataclass(frozen=True)
class File:
    """One YAML file: its config folder, its name in it, and its role."""

    root: Path
    name: str
    role: str

    @property
    def is_run(self) -> bool:
        return self.role == RUN

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def path(self) -> Path:
        inside = self.root / "config" if (self.root / "config").is_dir() else self.root
        return inside / f"{self.name}.yaml"

    @property
    def option(self) -> str:
        """For a file in a folder: `config=` selects one alone of those at the top."""
        group, _, name = self.name.rpartition("/")
        return f"+config/{group}={name}"


@dataclass(frozen=True)
class Trial:
    """One composition to check, and how."""

    arguments: tuple[str, ...]
    root: Path
    train: bool
    overrides: tuple[str, ...] = ()
    trusted: bool = False  # the config.yaml of a run's folder


@dataclass(frozen=True)
class Verdict:
    arguments: tuple[str, ...]
    problem: str = ""  # empty: it is right
    seconds: float = 0.0
    left_out: bool = False


# ---- finding files


def config_root(path: Path) -> Path:
    """The folder that --config-dir would name: the one that holds `config/`, as VISSL has it."""
    for parent in (path, *path.parents):
        if parent.name == "config":
            return parent.parent
        if parent.name == "configs":
            return parent
    return path if path.is_dir() else path.parent


def find(given: Path) -> list[File]:
    """The files of one folder, or one file."""
    given = given.resolve()
    root = config_root(given)
    paths = [given] if given.is_file() else sorted(given.rglob("*.yaml"))
    return [File(root, name_of(path, root), role_of(path, root)) for path in paths]


def name_of(path: Path, root: Path) -> str:
    """The file's name for `config=`."""
    inside = root / "config" if (root / "config").is_dir() else root
    return path.relative_to(inside).with_suffix("").as_posix()


def role_of(path: Path, root: Path) -> str:
    """The role; an unreadable file counts as a run, so that its error is reported."""
    try:
        tree = load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return RUN
    if isinstance(tree, dict) and "defaults" in tree:
        tree = _with_its_bases(name_of(path, root), root)
    if not isinstance(tree, dict):
        return RUN
    config = tree.get("config")
    if not isinstance(config, dict):
        return RUN if "config" in tree else FOREIGN
    sections = {"DATA", "MODEL", "OPTIMIZER"} & set(config)
    judges = "engine_name" in tree or not ENGINE_OF.keys().isdisjoint(config)
    whole = len(sections) == 3 or (judges and "MODEL" in sections)
    if whole and ("IMG_RETRIEVAL" in config or _names_its_data(config.get("DATA"))):
        return RUN
    return OVERLAY if len(sections) > 1 else PART


def _with_its_bases(name: str, root: Path) -> dict[str, Any] | None:
    """The file merged with those of its `defaults`, if they can be read."""
    try:
        return compose([f"config={name}"], [str(root)]).said()
    except SSLEngineError:
        return None


def _names_its_data(data: Any) -> bool:
    splits = data.values() if isinstance(data, dict) else ()
    return any(isinstance(split, dict) and "DATA_SOURCES" in split for split in splits)


def bases(part: File, known: Sequence[File]) -> list[File]:
    """The runs that a part may belong to: those of the nearest parent folder that has any."""
    runs = [file for file in known if file.is_run and file.root == part.root]
    folder = part.folder
    while True:
        near = [run for run in runs if not folder or f"{run.name}/".startswith(f"{folder}/")]
        if near or not folder:
            return near
        folder = folder.rpartition("/")[0]


# ---- checking one


def attempt(trial: Trial) -> None:
    """Raise an error if the composition is wrong."""
    engine = engine_argument(trial.arguments, trial.root)
    small = for_this_machine(trial.arguments, trial.root) if trial.train else []
    arguments = [*trial.arguments, *engine, *small, *trial.overrides]
    run = open_named(arguments, [str(trial.root)], trial.trusted)
    trains = trial.train and run.engine_name == "train"
    with closed(run.opened):
        (train_two_steps if trains else build_without_memory)(run)


def engine_argument(arguments: Sequence[str], root: Path) -> list[str]:
    """What VISSL's user adds to the files of a benchmark: the engine, if it is not `train`."""
    said = compose(arguments, [str(root)]).said()
    config = said.get("config")
    if "engine_name" in said or not isinstance(config, dict):
        return []
    named = [engine for section, engine in ENGINE_OF.items() if section in config]
    return [f"engine_name={each}" for each in named[:1] or _of_frozen(config)]


def _of_frozen(config: dict[str, Any]) -> list[str]:
    """Without an optimizer, the features are wanted."""
    match config:
        case {"MODEL": {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True}}}:
            return [] if "OPTIMIZER" in config else ["extract_features"]
    return []


def for_this_machine(arguments: Sequence[str], root: Path) -> list[str]:
    """Overrides with which a config of any size can train here."""
    sources = compose(arguments, [str(root)]).last_value("config.DATA.TRAIN.LABEL_SOURCES")
    return [*SMALL, *(WITH_LABELS if sources else [])]


def build_without_memory(run: Resolved) -> None:
    """Build the model on the meta device, whose tensors take no memory."""
    meta = torch.device("meta")
    with meta:
        model = build.build_base_model(run.config, meta)
        if run.engine_name != "train":
            return
        build.build_run_optimizer(run.config, model, meta, epochs=1.0)
        build.attach(run.config, build.build_loss(run.config, 1000, meta), model)


def train_two_steps(run: Resolved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = SelfSupervisionTask(
            run.config, Path(folder), torch.device("cpu"), hooks=[], services=Services()
        )
        task.prepare()
        loop.run(task)
        if task.iteration != STEPS:
            raise RuntimeError(f"{task.iteration} steps instead of {STEPS}")


def _serve(trials: Connection) -> None:
    """Answer trials until the pipe is closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    while True:
        try:
            trial = trials.recv()
        except EOFError:
            return
        before = len(sys.modules)
        problem = _problem(trial)
        trials.send((problem, len(sys.modules) > before and _brings_code(trial)))


def _problem(trial: Trial) -> str:
    try:
        attempt(trial)
    except SSLEngineError as error:
        return str(error)
    except Exception as error:  # any error is the file's verdict
        return f"{type(error).__name__}: {error}"
    return ""


class Worker:
    """A process that checks one composition after another; it is replaced if it dies.

    It imports modules once. A trial that trains or runs its own code gets a separate process.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def judge(self, trial: Trial, timeout: float) -> Verdict:
        if self._process is None:
            self._start()
        began = time.monotonic()
        self._pipe.send(trial)
        try:
            problem, done_with_it = f"not finished after {timeout:.0f} s", True
            if self._pipe.poll(timeout):
                problem, done_with_it = self._pipe.recv()
        except (EOFError, OSError):
            done_with_it = True
            self._process.join()
            status = self._process.exitcode
            problem = f"the process ended with status {status}; out of memory?"
        if trial.train or done_with_it:
            self.end()
        return Verdict(trial.arguments, problem, time.monotonic() - began)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _brings_code(trial: Trial) -> bool:
    try:
        arguments = [*trial.arguments, *trial.overrides]
        return bool(compose(arguments, [str(trial.root)]).last_value("config.PLUGINS"))
    except SSLEngineError:
        return False


def judge(trial: Trial, timeout: float) -> Verdict:
    """Check in a separate process: if it is killed for its memory, others are not affected."""
    worker = Worker()
    try:
        return worker.judge(trial, timeout)
    finally:
        worker.end()


# ---- checking all


def check(file: File, runs: Sequence[File], options: argparse.Namespace, worker: Worker) -> Verdict:
    """The verdict on a file; a part is right if it is right with one run."""
    if file.role == FOREIGN:
        return Verdict((), "it has no `config:`: a file of another program", left_out=True)
    choices = compositions(file, runs)[:MOST_BASES]
    verdicts: list[Verdict] = []
    for arguments in choices:
        trial = Trial(arguments, file.root, options.train, tuple(options.set), options.trust_config)
        verdicts.append(worker.judge(trial, options.timeout))
        if not verdicts[-1].problem:
            return verdicts[-1]
        if [each.problem for each in verdicts].count(verdicts[-1].problem) > 1:
            break  # the same error with another run: the part causes it
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


def compositions(file: File, runs: Sequence[File]) -> list[tuple[str, ...]]:
    """Arguments that the file is tried with. None adds a part at the top of the folder to a run."""
    if file.is_run:
        return [(f"config={file.name}",)]
    if file.folder:
        return [(f"config={base.name}", file.option) for base in bases(file, runs)]
    return [(f"config={run.name}",) for run in runs if run.root == file.root and has_in(run, file)]


def has_in(run: File, part: File) -> bool:
    """Is the part in the `defaults` of the run?"""
    try:
        layers = compose([f"config={run.name}"], [str(run.root)]).layers
    except SSLEngineError:
        return False
    return readable_path(part.path) in (layer.origin for layer in layers)


def own_lines(file: Path) -> list[str]:
    """Raises if the file is another's. The last line may be cut: a command was killed."""
    if not file.is_file():
        raise OutputError(f"--resume {file}: it is no file. Give another name.")
    text = file.read_text(errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith(KEPT) and not KEPT.startswith(line):
            raise OutputError(
                f"--resume {file}: line {number} is no verdict of this command, and nothing is "
                f"added to it. Give another name."
            )
    if text and not text.endswith("\n"):
        with file.open("a") as lines:
            lines.write("\n")
    return text.splitlines()


class Kept:
    """Verdicts of earlier commands: one line for each composition and way of checking."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.resume
        self._how = f"{options.train} {options.set} {options.trust_config}"
        self._known: dict[tuple[str, ...], Verdict] = {}
        if self._path is None:
            return
        if not self._path.exists():
            expect_writable(self._path, "--resume")
            return
        for line in own_lines(self._path):
            self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            arguments = tuple(entry["verdict"].pop("arguments"))
            self._known[tuple(entry["of"])] = Verdict(arguments, **entry["verdict"])
        except (ValueError, KeyError, TypeError):
            return  # the last line of a command that was killed

    def get(self, file: File) -> Verdict | None:
        return self._known.get(self._key(file))

    def put(self, file: File, verdict: Verdict) -> None:
        if self._path is not None:
            entry = {"of": self._key(file), "verdict": dataclasses.asdict(verdict)}
            with self._path.open("a") as lines:
                lines.write(f"{json.dumps(entry)}\n")

    def _key(self, file: File) -> tuple[str, ...]:
        changed = file.path.stat().st_mtime_ns
        return (str(file.root), file.name, str(changed), self._how)


def verdicts(files: Sequence[File], options: argparse.Namespace) -> Iterator[tuple[File, Verdict]]:
    """Yield verdicts: runs first, since other files are checked with the right ones."""
    # The runs that parts may belong to need not be among the files to check.
    roots = {file.root: None for file in files}
    known = dict.fromkeys([*(file for root in roots for file in find(root)), *files])
    runs = [file for file in known if file.is_run]
    kept = Kept(options)
    # Imported once, by the fork server of the processes.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    own, workers = threading.local(), []

    def work(file: File) -> Verdict:
        if not hasattr(own, "worker"):
            own.worker = Worker()
            workers.append(own.worker)
        return check(file, runs, options, own.worker)

    try:
        for chosen in ([f for f in files if f.is_run], [f for f in files if not f.is_run]):
            wrong = set()
            for file, verdict in _stage(chosen, work, kept, options.jobs):
                if verdict.problem and file.is_run:
                    wrong.add(file)
                yield file, verdict
            runs = [run for run in runs if run not in wrong]
            while workers:  # the next stage has its own threads
                workers.pop().end()
    finally:
        for worker in workers:
            worker.end()


def _stage(
    files: Sequence[File], work: Any, kept: Kept, jobs: int
) -> Iterator[tuple[File, Verdict]]:
    todo = []
    for file in files:
        verdict = kept.get(file)
        if verdict is None:
            todo.append(file)
        else:
            yield file, verdict
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, file): file for file in todo}
        try:
            for future in as_completed(futures):
                kept.put(futures[future], future.result())
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def state(verdict: Verdict) -> str:
    return "left out" if verdict.left_out else "wrong" if verdict.problem else "right"


def as_json(file: File, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": file.name, "folder": str(file.root), "role": file.role, "verdict": state(verdict),
        "problem": verdict.problem, "tried_as": verdict.arguments, "seconds": verdict.seconds,
    }  # fmt: skip


def tell(number: int, of: int, file: File, verdict: Verdict, console: Console) -> None:
    line = f"[{number}/{of}] {state(verdict):8} {file.role:7} {file.name}  {verdict.seconds:.1f} s"
    console.print(Text(line), soft_wrap=True)
    if verdict.problem:
        tried = " ".join(verdict.arguments)
        reason = _brief(verdict.problem).replace("\n", "\n      ")
        console.print(Text(f"      {reason}\n      tried as: {tried}".rstrip()), soft_wrap=True)


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
    yield f"{len(tried)} files: {len(tried) - len(wrong)} right, {len(wrong)} wrong"


def _brief(problem: str) -> str:
    """The problem without its indented hints; running the file prints the full text."""
    return "\n".join(line for line in problem.splitlines() if not line.startswith("  "))


def run(options: argparse.Namespace) -> int:
    """0 if every file is right, else 1."""
    assert catalog  # importing it declares all names
    files = [file for path in options.paths for file in find(path)]
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console = Console(stderr=options.json, width=140)
    results: list[tuple[File, Verdict]] = []
    for number, (file, verdict) in enumerate(verdicts(files, options), start=1):
        results.append((file, verdict))
        if verdict.problem or options.all or console.is_terminal or number % 50 == 0:
            tell(number, len(files), file, verdict, console)
    for line in summary(results):
        console.print(Text(line), soft_wrap=True)
    if options.json:
        documents.show([as_json(*each) for each in results])
    return int(any(verdict.problem and not verdict.left_out for _, verdict in results))
