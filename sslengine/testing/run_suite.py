"""Promises of all components of a run: methods, train steps, trunks, optimizers, hooks ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cached_property
from typing import Any, ClassVar

import torch
from omegaconf import OmegaConf

from sslengine.testing.promises import Suite, expect, names, promise
from sslengine.testing.runs import CHECKPOINT, SAVED_AT, RunOutcome, Spec, Values, run, run_on_ranks
from sslengine.testing.state import differences

BF16 = {
    "MODEL.AMP_PARAMS.USE_AMP": True,
    "MODEL.AMP_PARAMS.AMP_TYPE": "pytorch",
    "MODEL.AMP_PARAMS.AMP_DTYPE": "bfloat16",
}
TWO_RANKS = {"DISTRIBUTED.NUM_PROC_PER_NODE": 2, "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 2}
SHARDED = {"TRAINER.TASK_NAME": "self_supervision_fsdp_task", "MODEL.CHANNELS_LAST": False}
SYNC_BN = {"MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN": True, "MODEL.SYNC_BN_CONFIG.GROUP_SIZE": 0}
# The same pixels in every process: results may differ by the order of sums only.
EXACT = {"DATA.AUGMENT_BACKEND": "pil"}
# Plain SGD, which does not amplify small differences of gradients.
PLAIN = {
    "OPTIMIZER.name": "sgd",
    "OPTIMIZER.momentum": 0.0,
    "OPTIMIZER.num_iterations": 2,
    "OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 0.01},
    "OPTIMIZER.param_schedulers.lr.auto_lr_scaling.auto_scale": False,
}
# bfloat16 has three decimal digits; dividing by a temperature amplifies its rounding errors.
NEAR = 0.1


class RunSuite(Suite):
    """Test a component in a few steps of a run. Each run is made once and shared by promises."""

    trains = True
    key: ClassVar[str]  # names the component; the arguments are in the same section, or below it
    in_own_section: ClassVar[bool] = False
    # What runs are made with that are compared with each other.
    plain: Values = PLAIN

    def __init__(self, component: Any, *given: Any, **more: Any) -> None:
        super().__init__(component, *given, **more)
        self.spec = Spec(self.overrides, (self.chosen(),))
        self._made = 0

    def chosen(self) -> Values:
        """The config keys that choose the component and set its arguments."""
        section = self.key.rpartition(".")[0]
        below = f"{section}.{self.name}" if self.in_own_section else section
        return {self.key: self.component, **self._below(below)}

    def _below(self, path: str) -> Values:
        return {f"{path}.{key}": value for key, value in self.arguments.items()}

    # ---- the runs

    @cached_property
    def whole(self) -> RunOutcome:
        """Four steps with a checkpoint after the second, and with test phases if possible."""
        saved = {"CHECKPOINT.CHECKPOINT_ITER_FREQUENCY": SAVED_AT}
        return run(self._tested.having(saved), self.folder / "whole")

    @cached_property
    def _tested(self) -> Spec:
        if "tests_change_nothing" not in self.promises:
            return self.spec
        train = OmegaConf.to_container(self.spec.resolve().config.DATA.TRAIN)
        assert isinstance(train, dict)
        test = {f"DATA.TEST.{key!s}": each for key, each in train.items()}
        return self.spec.having(
            {**test, "DATA.TEST.DATA_LIMIT": 6, "DATA.TEST.DROP_LAST": False, "TEST_MODEL": True}
        )

    @cached_property
    def resumed(self) -> RunOutcome:
        """A run that resumes from the checkpoint of `whole`, as after a kill."""
        assert self.whole
        checkpoint = self.folder / "whole" / "checkpoints" / CHECKPOINT
        return run(self._tested, self.folder / "resumed", resume_from=checkpoint)

    @cached_property
    def half(self) -> RunOutcome:
        return self.alone(BF16, {"OPTIMIZER.num_iterations": 2})

    def alone(self, *values: Values, double: bool = False) -> RunOutcome:
        self._made += 1
        return run(self.spec.having(*values, double=double), self.folder / f"run{self._made}")

    def on_ranks(self, *values: Values, double: bool = False, ranks: int = 2) -> list[RunOutcome]:
        self._made += 1
        spec = self.spec.having(*values, double=double)
        return run_on_ranks(spec, self.folder / f"run{self._made}", ranks)

    # ---- the promises

    @promise()
    def trains_with_finite_losses(self) -> None:
        """The YAML is enough to build it, and every step has a finite float32 loss."""
        self._expect_finite(self.whole, "a run")
        tested = self.whole.test_losses
        expect(all(map(math.isfinite, tested)), f"the losses of test steps: {tested}")

    @promise()
    def trains_every_parameter(self) -> None:
        """Each trainable parameter changes, or is named in `unchanged`."""
        start, end = self.whole.start, self.whole.end
        unmoved = [name for name in start if torch.equal(start[name], end[name])]
        missed = [n for n in unmoved if not any(fnmatch(n, pattern) for pattern in self.unchanged)]
        expect(
            not missed,
            f"after {len(self.whole.losses)} steps these trainable parameters have "
            f"not changed: {names(missed)}. If they should not: requires_grad_(False), or "
            f"`unchanged` of the contract.",
            missed,
        )
        unused = [p for p in self.unchanged if not any(fnmatch(name, p) for name in unmoved)]
        expect(not unused, f"unchanged={unused}: parameters of that name change.")

    @promise()
    def resumes_bit_exactly(self) -> None:
        """A killed and resumed run equals one without a kill: all state is in the checkpoint."""
        outside = differences(self.whole.outside, self.resumed.outside)
        expect(
            not outside,
            f"{names(outside)}: not in the state dict, and other after a kill and a resume. Keep "
            f"it in a buffer, or in rank_state() and load_rank_state().",
            outside,
        )
        after = self.whole.losses[SAVED_AT:]
        expect(
            after == self.resumed.losses,
            f"after a resume at step {SAVED_AT} the losses are {self.resumed.losses}; "
            f"without a kill {after}. Some of its state is not in the checkpoint.",
        )
        differs = differences(self.whole.state, self.resumed.state)
        expect(not differs, f"these values differ after a resume: {names(differs)}")

    @promise()
    def tests_change_nothing(self) -> None:
        """A test phase changes no weights, state or random streams."""
        expect(bool(self.whole.test_losses), "no test step was made")
        changed = self.whole.changed_by_tests
        expect(
            not changed,
            f"a test phase has changed {names(changed)}. Check `step.train` (in a "
            f"hook `task.train`) before changing state, and draw from a separate generator.",
        )

    @promise()
    def trains_in_bfloat16(self) -> None:
        """Every step has a finite float32 loss in mixed precision."""
        self._expect_finite(self.half, "a run in bfloat16")

    @promise()
    def first_loss_is_close_in_bfloat16(self) -> None:
        """The first loss in mixed precision is close to that of full precision."""
        full, first = self.whole.losses[0], self.half.losses[0]
        expect(
            math.isclose(first, full, rel_tol=NEAR, abs_tol=NEAR),
            f"the first loss is {first:g} in bfloat16 and {full:g} in float32.",
        )

    @promise()
    def accumulates(self) -> None:
        """Accumulated batches make one update, and every step has a finite loss."""
        summed = self.alone({"OPTIMIZER.accumulate": 2})
        self._expect_finite(summed, "a run that accumulates")
        # Four steps in epochs of three: updates follow steps 2, 3 (the epoch ends) and 4.
        found = summed.num_updates
        expect(found == 3, f"3 groups of batches made {found} updates")

    @promise()
    def ranks_stay_equal(self) -> None:
        """Trained parameters are bit-equal on two ranks with DDP."""
        self._expect_trained_ranks(self.on_ranks(TWO_RANKS), "DDP")

    @promise()
    def ranks_stay_equal_sharded(self) -> None:
        """The same with parameters sharded by FSDP2, with the result of DDP."""
        sharded = self.on_ranks(self.plain, TWO_RANKS, SHARDED)
        self._expect_trained_ranks(sharded, "FSDP2")
        plain = self.on_ranks(self.plain, TWO_RANKS)
        self._expect_close(sharded[0], plain[0], "FSDP2", "DDP", 1e-2)

    @promise(always=False)
    def ranks_equal_one_process(self) -> None:
        """Four ranks get the same weights as one process with the global batch."""
        self.compare_ranks(4)

    def compare_ranks(self, count: int) -> list[RunOutcome]:
        images = {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": 8, "DATA.TRAIN.DATA_LIMIT": 16}
        alone = self.alone(EXACT, self.plain, images, double=True)
        spread = {
            **images, "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 8 // count,
            "DISTRIBUTED.NUM_PROC_PER_NODE": count,
        }  # fmt: skip
        ranks = self.on_ranks(EXACT, self.plain, spread, SYNC_BN, double=True, ranks=count)
        self._expect_close(ranks[0], alone, f"{count} ranks", "one process", 1e-8)
        return ranks

    @promise(always=False)
    def accumulation_equals_one_large_batch(self) -> None:
        """Two accumulated batches give the same weights as one batch of twice the size."""
        common = {**EXACT, **self.plain, "DATA.TRAIN.DATA_LIMIT": 8}
        halves = self.alone({**common, "OPTIMIZER.accumulate": 2}, double=True)
        large = {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": 8, "OPTIMIZER.num_iterations": 1}
        whole = self.alone(common, large, double=True)
        self._expect_close(halves, whole, "accumulation", "one large batch", 1e-8)

    # ---- checks

    def _expect_finite(self, outcome: RunOutcome, what: str) -> None:
        finite = len(outcome.losses) > 1 and all(map(math.isfinite, outcome.losses))
        expect(finite, f"the losses of {what} are {outcome.losses}")
        low = sorted({each for each in outcome.dtypes if each not in ("float32", "float64")})
        expect(not low, f"in {what} the loss has dtype {names(low)}")

    def _expect_equal_ranks(self, ranks: Sequence[RunOutcome], way: str) -> None:
        first, *others = ranks
        self._expect_finite(first, f"two ranks with {way}")
        for other in others:
            apart = [*differences(first.end, other.end)]
            apart += differences(first.loss_state, other.loss_state)
            expect(
                not apart,
                f"with {way} ranks differ in {names(apart)}. Update what all ranks "
                f"share from the data of all ranks: gather or reduce first.",
            )

    def _expect_trained_ranks(self, ranks: Sequence[RunOutcome], way: str) -> None:
        self._expect_equal_ranks(ranks, way)
        first = ranks[0]
        stuck = [name for name in first.end if torch.equal(first.start[name], first.end[name])]
        stuck = [name for name in stuck if not any(fnmatch(name, each) for each in self.unchanged)]
        expect(not stuck, f"with {way} these do not change: {names(stuck)}")

    def _expect_close(
        self, one: RunOutcome, other: RunOutcome, this: str, that: str, tolerance: float
    ) -> None:
        steps = {name: end - other.start[name] for name, end in other.end.items()}
        # The gradient of a bias before a batch norm is a rounding error.
        least = 1e-3 * max((step.abs().max().item() for step in steps.values()), default=0.0)
        far = []
        for name, step in steps.items():
            apart = (one.end[name] - one.start[name] - step).abs().max().item()
            if not apart <= tolerance * max(step.abs().max().item(), least):
                far.append(name)
        expect(
            not far,
            f"the weights with {this} and with {that} differ: {names(far)} "
            f"({len(far)} of {len(other.end)} parameters). Is something computed of a part of the "
            f"images alone? `gather` and `sum_over_ranks` give those of all ranks.",
        )
