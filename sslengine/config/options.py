"""Options that concern the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import above, at_least, choice
from sslengine.config.sections import named, section
from sslengine.registry import TASKS, TRAIN_STEPS

# Seeds derived from it must fit into 64 bits, in torch and in numpy.
MOST_SEED = 2**32 - 1
# The environment variable with the path of the catalogue of datasets found below --config-dir.
FOUND_CATALOGUE = "SSLENGINE_FOUND_DATASET_CATALOG"
SHARDED_TASK = "self_supervision_fsdp_task"


@section("")
@dataclass
class RunOptions:
    """Keys directly under `config`."""

    # Python modules to import first; they register custom components.
    PLUGINS: list[str] = field(default_factory=list)
    # Print on the screen what is otherwise only written to the log file.
    VERBOSE: bool = False
    # Train steps between two log lines; between them losses stay on the device.
    LOG_FREQUENCY: int = at_least(1, 10)
    # Run one test phase and no training.
    TEST_ONLY: bool = False
    # Whether the run has test phases.
    TEST_MODEL: bool = True
    # Run a test phase after epochs 0, N, 2N, ... and after the last.
    TEST_EVERY_NUM_EPOCH: int = at_least(1, 1)
    # Run a test phase after every N train steps, also within an epoch (after a complete group of
    # accumulated batches), and after the last step; 0: by epochs. The train phase continues after
    # it: numbers of phases, schedules and checkpoints do not change, and its metrics are those
    # since the last test. If CHECKPOINT.CHECKPOINT_ITER_FREQUENCY is equal, each result has a
    # checkpoint.
    TEST_EVERY_NUM_ITERATIONS: int = at_least(0, 0)
    # The seed of initial weights, sample order and augmentation.
    SEED_VALUE: int = at_least(-MOST_SEED, 0, at_most=MOST_SEED)
    # The metrics that the run must reach, each [name, value, tolerance]; if not, the command fails:
    # [[test.accuracy_list_meter.top_1.0, 80.0, 2.0], [train.loss, 1.2, 0.3]]. A name is the split
    # and the name in the last `phase` line of metrics.jsonl; for the engine `evaluate` it is
    # test.<features>.<layer>.linear or .knn_<k>, as in test.trained.flatten.knn_20.
    EXPECTED_RESULTS: list[Any] = field(default_factory=list)
    # For the engine `train_svm`, the folder of features that the engine `extract_features`, or
    # VISSL's, has written; empty: they are computed.
    SVM_FEATURES_PATH: str = ""
    # How loader workers start: forkserver, spawn or fork.
    MULTI_PROCESSING_METHOD: str = choice("forkserver", "spawn", "fork")

    def check(self) -> Iterator[str]:
        for index, entry in enumerate(self.EXPECTED_RESULTS):
            if not _is_expectation(entry):
                yield (
                    f"EXPECTED_RESULTS.{index}: expected [name, value, tolerance] such as "
                    f"[test.accuracy_list_meter.top_1.0, 80.0, 2.0], with a name that starts with "
                    f"train. or test., and a tolerance of 0 or more; got {entry!r}."
                )
        every = self.TEST_EVERY_NUM_ITERATIONS
        if every and not self.TEST_MODEL:
            yield "TEST_EVERY_NUM_ITERATIONS: requires TEST_MODEL=true; set that, or this to 0."
        if every and self.TEST_EVERY_NUM_EPOCH != 1:
            yield (
                f"TEST_EVERY_NUM_ITERATIONS: cannot be combined with TEST_EVERY_NUM_EPOCH; set "
                f"TEST_EVERY_NUM_EPOCH to 1 (it is {self.TEST_EVERY_NUM_EPOCH}), or this to 0."
            )


def _is_expectation(entry: Any) -> bool:
    match entry:
        case [str(name), int() | float(), int() | float() as tolerance]:
            return name.startswith(("train.", "test.")) and tolerance >= 0
    return False


DEVICES = ("gpu", "mps", "cpu", "auto")


@section("MACHINE")
@dataclass
class MachineOptions:
    # gpu; mps, the GPU of an Apple computer, for one process; cpu; or auto: the first of these
    # that there is.
    DEVICE: str = choice(*DEVICES)
    # fp32, tf32, bf16, fp16, or auto: on a GPU bf16 with TF32 (fp16 if it has no bf16) and
    # CUDNN_BENCHMARK, elsewhere fp32. Empty: MODEL.AMP_PARAMS decides.
    PRECISION: str = choice("", "auto", "fp32", "tf32", "bf16", "fp16")


@section("REPRODUCIBILITY")
@dataclass
class ReproducibilityOptions:
    # Deterministic kernels of cuDNN, the GPU's convolutions (VISSL's spelling).
    CUDDN_DETERMINISTIC: bool = False
    # Deterministic kernels of all of torch: on a GPU too a resumed run is equal bit by bit. An
    # operation that has none is an error, such as crops of two sizes with learned positions.
    DETERMINISTIC: bool = False
    # Let cuDNN time its kernels for each new input size and use the fastest. Runs are then not
    # reproducible bit by bit.
    CUDNN_BENCHMARK: bool = False

    def check(self) -> Iterator[str]:
        for key in ("CUDDN_DETERMINISTIC", "DETERMINISTIC"):
            if getattr(self, key) and self.CUDNN_BENCHMARK:
                yield f"CUDNN_BENCHMARK: cannot be combined with {key}."


@section("TRAINER", components=TRAIN_STEPS)
@dataclass
class TrainerOptions:
    # The train step; its options, if it has any, are in the section of its name.
    TRAIN_STEP_NAME: str = named(TRAIN_STEPS, "standard_train_step")
    # self_supervision_fsdp_task shards the model over ranks.
    TASK_NAME: str = named(TASKS, "self_supervision_task")


@section("DISTRIBUTED")
@dataclass
class DistributedOptions:
    # nccl for GPUs, gloo for CPUs.
    BACKEND: str = "nccl"
    # Nodes (machines) of the run.
    NUM_NODES: int = at_least(1, 1)
    # Ranks of each node, one for each GPU.
    NUM_PROC_PER_NODE: int = at_least(1, 8)
    # A name of the run, for CHECKPOINT.APPEND_DISTR_RUN_ID; auto: none.
    RUN_ID: str = "auto"
    # When rank 0's buffers are broadcast: true or forward_pass: before every forward pass;
    # before_eval; false or disabled: never.
    BROADCAST_BUFFERS: bool | str = choice(True, False, "disabled", "forward_pass", "before_eval")
    # Reduce gradients in one call after the backward pass, not in DDP's buckets.
    MANUAL_GRADIENT_REDUCTION: bool = False
    # Compression of the gradients that ranks exchange: none, fp16, bf16, powersgd.
    GRADIENT_COMPRESSION: str = choice("none", "fp16", "bf16", "powersgd")
    # powersgd: the rank of its matrices.
    POWERSGD_RANK: int = at_least(1, 1)
    # powersgd: the number of first steps without compression, 2 or more.
    POWERSGD_START: int = at_least(2, 1000)
    # Set true for models with parameters that are not used in every step.
    FIND_UNUSED_PARAMETERS: bool = False
    # Report the parameters that get no gradient, and whether the forward pass used them.
    DETECT_ANOMALOUS_PARAMS: bool = False
    # Minutes after which a collective that does not complete ends the run.
    TIMEOUT_MINUTES: float = 30.0
    # Minutes after which the start fails if a node or rank has not joined.
    RENDEZVOUS_MINUTES: float = above(0, 10.0)
    # Seconds without a heartbeat after which a rank's process counts as lost and the other ranks
    # end; a slow rank still sends heartbeats. 0: ranks send none.
    HEARTBEAT_SECONDS: float = at_least(0, 0.0)
    # How many times ranks are restarted from the newest checkpoint after one is lost or fails.
    MAX_RESTARTS: int = at_least(0, 0)
    # Enable NCCL's debug output.
    NCCL_DEBUG: bool = False
    # Threads of NCCL for each socket; empty: NCCL's default.
    NCCL_SOCKET_NTHREADS: int | str | None = ""
