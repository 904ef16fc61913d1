"""Loader workers: started once for the whole run, quickly, and with the data side alone.

A forked worker is there at once but inherits a process that may hold GPU memory and
locks; a spawned one imports everything again. So by default workers are forked from a
server process that has imported the data side and nothing else. It boots while the
model is being built.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import select
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch
from sslengine.data.batch.samplers import BatchSampler
from sslengine.data.loading.dataset import NO_SAMPLE, SSLDataset, collate_seeded, note_places_in
from sslengine.data.options import DataOptions
from sslengine.errors import DataError
from sslengine.trust import Opened, hand_on, take_over

Collate = Callable[[Sequence[Sample]], Batch]
# An epoch, the first of its steps, and the one after the last.
Window = tuple[int, int, int]

# What workers need; the server imports it before it forks the first.
WORKER_MODULES = (
    "sslengine.data.loading.lean_torchvision",  # the first: others import torchvision
    "sslengine.data.loading.loader",
    "sslengine.data.augment.pipeline",
    "sslengine.data.augment.jigsaw",
    "sslengine.data.augment.views",
    "torchvision.transforms",
)


class Loader:
    """torch's DataLoader for one dataset and sampler, window after window, without a gap between
    two: workers end a window some batches before the step does, and begin with the next one at
    once where it is known."""

    def __init__(
        self,
        dataset: SSLDataset,
        sampler: BatchSampler,
        collate: Collate,
        options: DataOptions,
        pin_memory: bool,
        mp_method: str,
    ) -> None:
        workers = options.NUM_DATALOADER_WORKERS
        if workers and mp_method == "forkserver":
            boot_server(dataset.worker_modules if isinstance(dataset, SSLDataset) else ())
        self._dataset, self._sampler = dataset, sampler
        self._places = torch.full((workers,), NO_SAMPLE).share_memory_()
        with _no_remark_on_workers():
            self._loader: DataLoader[Sample] | None = DataLoader(
                dataset,
                batch_sampler=sampler,
                collate_fn=partial(collate_seeded, collate),
                num_workers=workers,
                prefetch_factor=options.PREFETCH_FACTOR if workers else None,
                persistent_workers=workers > 0,
                multiprocessing_context=mp_method if workers else None,
                worker_init_fn=partial(
                    prepare_worker, main=os.getpid(), places=self._places, opened=hand_on()
                ),
                pin_memory=pin_memory,
                # An iterator draws a seed for its workers: not from the global stream.
                generator=torch.Generator(),
            )
        self._waits = options.WORKER_TIMEOUT if workers else 0.0
        pickled = workers and mp_method != "fork"
        self._main_needed = pickled and _refers_to_main(dataset, collate)
        self._iterator: Any = None
        self._started = 0  # iterations; each ends the one before
        self._left = 0  # batches of the current window
        self._next: Window | None = None

    def batches(self, *window: int) -> Iterator[Batch]:
        """Return the batches of a window. Workers are at work when this returns; they have been
        since before if it is the window that was expected."""
        if window != self._next or self._left:
            self._sampler.set_window(*window)
            self._start()
        _, first, end = window
        self._next, self._left = None, end - first
        return self._take(self._started, end - first)

    def then(self, *window: int) -> None:
        """Load a window after the current one; if it is not used, nothing is lost."""
        if self._next is None:  # else one has been said before, and is being loaded
            epoch, first, end = window
            self._sampler.then(epoch, first, end)
            self._next = epoch, first, end

    def close(self) -> None:
        """Stop the workers."""
        # Not left to the garbage collector: an error that is being handled still refers to the
        # iterator, and one that it finds in a cycle waits 5 seconds for its workers.
        shut_down = getattr(getattr(self._loader, "_iterator", None), "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        self._loader = None

    def _start(self) -> None:
        assert self._loader is not None, "the loader has been closed"
        hidden = nullcontext() if self._main_needed else main_hidden()
        with hidden, _no_remark_on_workers():
            self._iterator = iter(self._loader)
        if self._waits:
            _wait_at_most(self._waits, self._iterator, self._tell_samples)
        self._started += 1

    def _take(self, started: int, count: int) -> Iterator[Batch]:
        """Yield so many batches; say what goes wrong in a worker as a user can read it."""
        for _ in range(count):
            if started != self._started:
                return
            try:
                batch = next(self._iterator, None)
            except DataError as error:
                raise DataError(_cut_traceback(error)) from error
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise DataError(
                    f"A loader worker died: {error}\n"
                    f"{self._tell_samples(dead=True)}"
                    f"  Most often the machine ran out of memory, or a container of shared memory "
                    f"(/dev/shm): lower config.DATA.NUM_DATALOADER_WORKERS or the batch size. With "
                    f"0 workers the main process crashes, and shows where."
                ) from error
            if batch is None:
                return
            self._left -= 1
            yield batch

    def _tell_samples(self, dead: bool = False) -> str:
        """Return a line for each worker, or each that has died, that was at work on a sample."""
        workers = self._iterator._workers
        numbers = [n for n, each in enumerate(workers) if not (dead and each.is_alive())]
        at = {number: int(self._places[number]) for number in numbers}
        return "".join(
            f"  Worker {number} was at sample {index}: {self._dataset.name(index)}\n"
            for number, index in at.items()
            if index != NO_SAMPLE
        )


def boot_server(more: Sequence[str] = ()) -> None:
    """Start the process that workers are forked from; does not wait for it.

    more: modules that this dataset needs in addition to WORKER_MODULES.
    """
    multiprocessing.set_forkserver_preload([*WORKER_MODULES, *more])
    with main_hidden(), _ignore_signals():
        multiprocessing.forkserver.ensure_running()


def prepare_worker(
    worker: int, main: int, places: torch.Tensor, opened: tuple[Opened, ...] = ()
) -> None:
    """Prepare a worker before its first sample. (torch limits it to one thread itself.)

    main: the process that the worker loads for.
    places: where it notes which sample it is at.
    opened: what it loads for and was opened without trust.
    """
    # Python's garbage collector writes to every object that it scans, and so copies the memory that
    # is shared with the server: it leaves out the objects that exist by now.
    gc.freeze()
    take_over(opened)
    note_places_in(places, worker)
    # The main process decides what a signal means; a worker forked from it has its handlers.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "sigwaitinfo"):
        # Before any thread is started: one that does not block it would get it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_by_signal, args=(main,), daemon=True).start()
    threading.Thread(target=_end_after, args=(main,), daemon=True).start()
    # About EXIF and palettes, once for each such file in each worker.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _end_after(main: int) -> None:
    """Wait until the main process has gone, and go too.

    torch's own watch is on the parent, which is the server that the worker was forked from;
    and the server lives as long as it has workers. A run that is killed would leave both.
    """
    with contextlib.suppress(ProcessLookupError):
        try:
            gone = select.poll()
            gone.register(os.pidfd_open(main), select.POLLIN)
            gone.poll()
        except (AttributeError, OSError):  # not Linux, or one that has no pidfd
            while True:
                os.kill(main, 0)
                time.sleep(2.0)
    os._exit(1)


def _end_by_signal(main: int) -> None:
    """End the worker at a SIGTERM of the main process. A scheduler sends it to all processes of a
    run alike, and then the main process still needs batches to end in good order."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != main:
        pass
    os._exit(1)


@contextmanager
def _ignore_signals() -> Iterator[None]:
    """Let what is started meanwhile ignore the signals that a scheduler sends to all processes."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal means
        return
    ignored = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_remark_on_workers() -> Iterator[None]:
    """Silence torch, which finds more workers than cores remarkable: the user chooses that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def main_hidden() -> Iterator[None]:
    """Let processes that start meanwhile not import the script that this process runs.

    multiprocessing has every child import it, and with it all of the engine: seconds for
    each worker, for things that no worker uses.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _refers_to_main(*sent: object) -> bool:
    """Does what is sent to a worker use a class that the user's script itself defines?"""
    try:
        return b"__main__" in pickle.dumps(sent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DataError(
            f"The dataset cannot be sent to loader workers: {error}. Let sources, transforms "
            f"and collators hold no lambda, local function or open file; or set "
            f"config.MULTI_PROCESSING_METHOD=fork, or config.DATA.NUM_DATALOADER_WORKERS=0."
        ) from error


def _wait_at_most(seconds: float, iterator: Any, tell_samples: Callable[[], str]) -> None:
    """Let torch's iterator give up when no batch comes for so long.

    Its own timeout would do, did it not stop looking meanwhile whether a worker has died.
    This asks for data in rounds of a second, where the iterator does in rounds of five: after
    each it sees whether a worker has died.
    """
    ask, began = type(iterator)._try_get_data, None

    def try_get_data(timeout: float = 1.0) -> tuple[bool, Any]:
        nonlocal began
        began = began or time.monotonic()
        done, data = ask(iterator, min(timeout, seconds))
        if done:
            began = None
        elif time.monotonic() - began >= seconds:
            raise DataError(
                f"the loader workers gave no batch for {seconds:g} seconds "
                f"(config.DATA.WORKER_TIMEOUT). Does a file system hang, or a transform?\n"
                f"{tell_samples()}"
            )
        return done, data

    iterator._try_get_data = try_get_data


def _cut_traceback(error: DataError) -> str:
    """Return the text of an error without the traceback that torch puts before it in a worker."""
    return str(error).rpartition(f"{DataError.__module__}.{DataError.__name__}: ")[2].rstrip()
