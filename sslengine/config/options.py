"""Sections that belong to the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.sections import iterations, named, one_of, section
from sslengine.registry import TASKS, TRAIN_STEPS

# What is drawn from it takes 64 bits, in torch and in numpy.
MOST_SEED = 2**32 - 1
SHARDED_TASK = "self_supervision_fsdp_task"


@section("")
@dataclass
class RunOptions:
    """Keys directly under `config`."""

    # Modules of your own to import first, for the names they register.
    PLUGINS: list[str] = field(default_factory=list)
    # More on the screen: what otherwise goes to the log file alone.
    VERBOSE: bool = False
    # Steps between two log lines; losses stay on the device in between.
    LOG_FREQUENCY: int = 10
    # The number of ranks that the learning rates and step counts below are meant for; on another
    # number they are scaled, and then this is that number. 0: they are meant as they stand.
    REFERENCE_WORLD_SIZE: int = 0
    # Only the test phase.
    TEST_ONLY: bool = False
    # Test phases at all?
    TEST_MODEL: bool = True
    # A test phase after epochs 0, N, 2N, ... and after the last.
    TEST_EVERY_NUM_EPOCH: int = 1
    # A test phase after every so many train steps, also within an epoch (at the end of a group of
    # accumulated batches), and after the last; 0: by epochs. A train phase continues after it:
    # phases, schedules and checkpoints count as without, its metrics are those since the last
    # test. With CHECKPOINT.CHECKPOINT_ITER_FREQUENCY the same, each result has its checkpoint.
    TEST_EVERY_NUM_ITERATIONS: int = iterations(0)
    # Initial weights, sample order and augmentation: all from this, and from nothing else.
    SEED_VALUE: int = 0
    # Metrics that the run must end with, each [name, value, tolerance], or the command fails:
    # [[test.accuracy_list_meter.top_1.0, 80.0, 2.0], [train.loss, 1.2, 0.3]]. Names are those of
    # the last `phase` lines of metrics.jsonl, after their split; for the engine `evaluate`
    # test.<features>.<layer>.linear and .knn_<k>, as in test.trained.flatten.knn_20.
    EXPECTED_RESULTS: list[Any] = field(default_factory=list)
    # How loader workers start: forkserver, spawn or fork.
    MULTI_PROCESSING_METHOD: str = "forkserver"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "MULTI_PROCESSING_METHOD", "forkserver", "spawn", "fork")
        for key in ("LOG_FREQUENCY", "TEST_EVERY_NUM_EPOCH"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        if abs(self.SEED_VALUE) > MOST_SEED:
            yield f"SEED_VALUE: expected at most {MOST_SEED}, got {self.SEED_VALUE}."
        if self.REFERENCE_WORLD_SIZE < 0:
            yield f"REFERENCE_WORLD_SIZE: expected 0 or more, got {self.REFERENCE_WORLD_SIZE}."
        for index, entry in enumerate(self.EXPECTED_RESULTS):
            if not _is_expectation(entry):
                yield (
                    f"EXPECTED_RESULTS.{index}: expected [name, value, tolerance] such as "
                    f"[test.accuracy_list_meter.top_1.0, 80.0, 2.0], the name beginning with "
                    f"train. or test. and the tolerance 0 or more; got {entry!r}."
                )
        yield from self._tests_by_iteration()

    def _tests_by_iteration(self) -> Iterator[str]:
        every = self.TEST_EVERY_NUM_ITERATIONS
        if every < 0:
            yield f"TEST_EVERY_NUM_ITERATIONS: expected 1 or more, or 0 for none; got {every}."
        if every > 0 and not self.TEST_MODEL:
            yield "TEST_EVERY_NUM_ITERATIONS: nothing is tested; set TEST_MODEL=true, or this to 0."
        if every > 0 and self.TEST_EVERY_NUM_EPOCH != 1:
            yield (
                f"TEST_EVERY_NUM_ITERATIONS: tests come by iterations or by epochs, not both; "
                f"leave TEST_EVERY_NUM_EPOCH at 1 (it is {self.TEST_EVERY_NUM_EPOCH}), or set "
                f"this to 0."
            )


def _is_expectation(entry: Any) -> bool:
    match entry:
        case [str(name), int() | float(), int() | float() as tolerance]:
            return name.startswith(("train.", "test.")) and tolerance >= 0
    return False


@section("MACHINE")
@dataclass
class MachineOptions:
    # gpu, cpu, or auto: a GPU if there is one.
    DEVICE: str = "gpu"
    # fp32, tf32, bf16, fp16, or auto: on a GPU bf16 with TF32 (fp16 if it has no bf16) and
    # CUDNN_BENCHMARK, elsewhere fp32. Empty: as MODEL.AMP_PARAMS says.
    PRECISION: str = ""

    def check(self) -> Iterator[str]:
        yield from one_of(self, "DEVICE", "gpu", "cpu", "auto")
        yield from one_of(self, "PRECISION", "", "auto", "fp32", "tf32", "bf16", "fp16")


@section("REPRODUCIBILITY")
@dataclass
class ReproducibilityOptions:
    # Deterministic kernels on the GPU (VISSL's spelling).
    CUDDN_DETERMINISTIC: bool = False
    # Let cuDNN try its kernels on each new size of input and keep the fastest. Runs are then not
    # the same bit by bit.
    CUDNN_BENCHMARK: bool = False

    def check(self) -> Iterator[str]:
        if self.CUDDN_DETERMINISTIC and self.CUDNN_BENCHMARK:
            yield "CUDNN_BENCHMARK: not together with CUDDN_DETERMINISTIC."


@section("TRAINER", components=TRAIN_STEPS)
@dataclass
class TrainerOptions:
    # A step that has options takes them from a section of its name.
    TRAIN_STEP_NAME: str = named(TRAIN_STEPS, "standard_train_step")
    # self_supervision_fsdp_task: each rank holds its share of the model alone.
    TASK_NAME: str = named(TASKS, "self_supervision_task")


@section("DISTRIBUTED")
@dataclass
class DistributedOptions:
    # nccl for GPUs, gloo for CPUs.
    BACKEND: str = "nccl"
    # Nodes (machines) of the run.
    NUM_NODES: int = 1
    # Ranks of each node, one for each GPU.
    NUM_PROC_PER_NODE: int = 8
    # auto: a free port on this node; host:port of the first node when there are several.
    RUN_ID: str = "auto"
    # true or forward_pass: rank 0's buffers before every forward; before_eval; false or disabled.
    BROADCAST_BUFFERS: bool | str = True
    # Reduce gradients by one call after backward instead of in DDP's buckets.
    MANUAL_GRADIENT_REDUCTION: bool = False
    # What ranks send each other of gradients: none (all of them), fp16, bf16, powersgd.
    GRADIENT_COMPRESSION: str = "none"
    # Of powersgd: the rank of its matrices.
    POWERSGD_RANK: int = 1
    # Of powersgd: the plain steps before it begins, 2 or more.
    POWERSGD_START: int = 1000
    # For models in which a step does not reach every parameter.
    FIND_UNUSED_PARAMETERS: bool = False
    # Name the parameters that no loss reaches, and say whether the forward pass used them.
    DETECT_ANOMALOUS_PARAMS: bool = False
    # Minutes after which a collective that does not complete ends the run.
    TIMEOUT_MINUTES: float = 30.0
    # Minutes within which all nodes and ranks must have come at the start.
    RENDEZVOUS_MINUTES: float = 10.0
    # Seconds without a sign of life after which a rank's process counts as lost and the others
    # end; a rank that is only slow gives signs. 0: never.
    HEARTBEAT_SECONDS: float = 20.0
    # Start the ranks again, from the newest checkpoint, so many times when one is lost or fails.
    MAX_RESTARTS: int = 0
    # NCCL says what it does.
    NCCL_DEBUG: bool = False
    # Of NCCL: threads for each socket; empty: as NCCL has it.
    NCCL_SOCKET_NTHREADS: int | str | None = ""

    def check(self) -> Iterator[str]:
        for key in ("NUM_NODES", "NUM_PROC_PER_NODE", "POWERSGD_RANK"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        if self.POWERSGD_START < 2:  # torch's condition
            yield f"POWERSGD_START: expected 2 or more, got {self.POWERSGD_START}."
        if self.RENDEZVOUS_MINUTES <= 0:
            yield f"RENDEZVOUS_MINUTES: expected more than 0, got {self.RENDEZVOUS_MINUTES}."
        for key in ("HEARTBEAT_SECONDS", "MAX_RESTARTS"):
            if getattr(self, key) < 0:
                yield f"{key}: expected 0 or more, got {getattr(self, key)}."
        yield from one_of(self, "GRADIENT_COMPRESSION", "none", "fp16", "bf16", "powersgd")
        yield from one_of(
            self, "BROADCAST_BUFFERS", True, False, "disabled", "forward_pass", "before_eval"
        )
