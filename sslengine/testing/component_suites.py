"""Promises that one kind of component makes in addition to those of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sslengine.registry import METERS
from sslengine.testing.promises import expect, names, promise
from sslengine.testing.run_suite import PLAIN, TWO_RANKS, RunSuite
from sslengine.testing.runs import Spec, Values, build, run, run_on_ranks
from sslengine.testing.state import differences, flat, same

IMAGES = 6


class MethodSuite(RunSuite):
    """arguments: below config.LOSS.<name>."""

    kind, key, in_own_section = "method", "LOSS.name", True


class ModelSuite(RunSuite):
    """A whole model in place of trunk and heads; arguments: below config.MODEL.<name>."""

    kind, key, in_own_section = "model", "MODEL.BASE_MODEL_NAME", True


class TrainStepSuite(RunSuite):
    """arguments: below config.TRAINER.<name>."""

    kind, key, in_own_section = "train_step", "TRAINER.TRAIN_STEP_NAME", True


class NetworkSuite(RunSuite):
    @cached_property
    def model(self) -> Any:
        return build(self.spec.resolve(), self.folder / "model").base_model.eval()

    @cached_property
    def images(self) -> Tensor:
        task = build(self.spec.resolve(), self.folder / "images")
        images = next(iter(task.train_feed.batches(0)))["data"][0]
        task.close()
        return images[0] if isinstance(images, list) else images  # type: ignore[no-any-return]

    @promise()
    def treats_images_independently(self) -> None:
        """An output depends on its image alone in eval mode; the image is not written into."""
        network, given = self.network()
        before = given.clone()
        with torch.no_grad():
            together, again = tree_leaves(network(given)), tree_leaves(network(given))
            expect(same(before, given), "it has written into its input")
            alone = tree_leaves(network(given[: len(given) // 2]))
        expect(same(together[0], again[0]), "in evaluation its output changes")
        for half, both in zip(alone, together, strict=True):
            near = torch.allclose(half, both[: len(half)], rtol=1e-4, atol=1e-5)
            expect(near, "in evaluation an output depends on the other images")

    def network(self) -> tuple[nn.Module, Tensor]:
        raise NotImplementedError


class TrunkSuite(NetworkSuite):
    """arguments: below config.MODEL.TRUNK."""

    kind, key = "trunk", "MODEL.TRUNK.NAME"

    def network(self) -> tuple[nn.Module, Tensor]:
        return self.model.trunk, self.images

    @promise()
    def returns_features_by_name(self) -> None:
        """Each of `feature_names` can be requested; heads get the last one."""
        trunk, wanted = self.model.trunk, self.model.trunk.feature_names
        expect(bool(wanted), "it has no feature_names")
        with torch.no_grad():
            found = trunk(self.images, wanted)
            expect(len(found) == len(wanted), f"{len(found)} features of {wanted}")
            one_by_one = [trunk(self.images, [name])[0] for name in wanted]
            last = trunk(self.images)[0]
        wrong = [n for n, a, b in zip(wanted, found, one_by_one, strict=True) if not same(a, b)]
        expect(not wrong, f"{names(wrong)} has other values if requested alone")
        expect(
            same(last, found[-1]),
            f"without names it does not return {wanted[-1]}, the last feature",
        )


class HeadSuite(NetworkSuite):
    """arguments: as in config.MODEL.HEAD.PARAMS. before: heads that run first, as entries too."""

    kind, own = "head", ("before",)
    before: Sequence[Any] = ()

    def chosen(self) -> Values:
        return {"MODEL.HEAD.PARAMS": [[*self.before, [self.component, self.arguments]]]}

    def network(self) -> tuple[nn.Module, Tensor]:
        return self.model, self.images


class OptimizerSuite(RunSuite):
    """arguments: below config.OPTIMIZER."""

    kind, key = "optimizer", "OPTIMIZER.name"
    # It is compared itself.
    plain: Values = {key: PLAIN[key] for key in PLAIN if not key.endswith(("name", "momentum"))}

    @promise()
    def follows_the_learning_rate(self) -> None:
        """No parameter changes at a learning rate of zero; parameters change at another."""
        none = {"OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 0.0}}
        outcome = self.alone(none, {"OPTIMIZER.num_iterations": 2})
        changed = differences(outcome.start, outcome.end)
        expect(not changed, f"at a learning rate of zero it changes {names(changed)}")


class HookSuite(RunSuite):
    """arguments: its own, as in config.HOOKS.EXTRA.

    by_config: it has no entry in EXTRA; `overrides` enable it.
    """

    kind, own = "hook", ("by_config",)
    by_config = False

    def chosen(self) -> Values:
        if self.by_config:
            return {}
        return {"HOOKS.EXTRA": [{"name": self.component, **self.arguments}]}

    @promise()
    def does_not_change_the_run(self) -> None:
        """Losses, weights and random streams are the same with it and without it."""
        expect(self.name in self.whole.hooks, "its options do not add it to a run")
        others = [each for each in self._tested.values if each is not self.spec.values[0]]
        without = run(Spec((), tuple(others)), self.folder / "without")
        with_it, alone = ({**each.state, "losses": each.losses, "test losses": each.test_losses}
                          for each in (self.whole, without))  # fmt: skip
        moved = differences(alone, with_it)
        expect(
            not moved,
            f"it changes the run: {names(moved)}. A hook must only observe, and draw "
            f"from its own generator.",
        )

    @promise()
    def resumes_its_state(self) -> None:
        """Its state dict holds all its state, except what differs between any two runs."""
        whole, resumed = self.whole.hooks[self.name], self.resumed.hooks[self.name]
        again = run(self._tested, self.folder / "again").hooks[self.name]
        steady = {key for key in whole if key in again and same(whole[key], again[key])}
        differs = [key for key in differences(whole, resumed) if key in steady]
        expect(
            not differs,
            f"{names(f'{self.name}.{key}' for key in differs)}: not in its state dict, and other "
            f"after a kill and a resume.",
        )


class MeterSuite(RunSuite):
    """arguments: below config.METERS.<name>. classes: number of classes of the test outputs."""

    kind, own = "meter", ("classes",)
    classes = 7

    def chosen(self) -> Values:
        return {
            "METERS.names": [self.component],
            **self._below(f"METERS.{self.name}"),
            "MODEL.HEAD.PARAMS": [["mlp", {"dims": [32, self.classes]}]],
            "LOSS.name": "cross_entropy_multiple_output_single_target",
        }

    @promise()
    def does_not_depend_on_batch_size(self) -> None:
        """The value does not depend on how images are batched; reset clears it."""
        outputs, targets = self._data()
        values = []
        meter = self._make()
        for size in (IMAGES, 1, 4):
            meter.reset()
            for output, target in zip(outputs.split(size), targets.split(size), strict=True):
                meter.update(output, target)
            values.append(flat(meter.value()))
        expect(bool(values[0]), "it has no value")
        first, *others = values
        wrong = [
            key for key in first if not all(_near(first[key], each.get(key)) for each in others)
        ]
        expect(not wrong, f"the batch size changes these values: {names(wrong)}")

    @promise()
    def resumes_from_its_state_dict(self) -> None:
        """Within a phase its state dict holds the counts so far."""
        outputs, targets = self._data()
        one, other = self._make(), self._make()
        one.update(outputs[:3], targets[:3])
        other.load_state_dict(one.state_dict())
        for each in (one, other):
            each.update(outputs[3:], targets[3:])
        differs = differences(flat(one.value()), flat(other.value()))
        expect(not differs, f"these values differ after a resume: {names(differs)}")

    @promise()
    def counts_all_ranks(self) -> None:
        """The value on two ranks equals that of one process with all images."""
        frozen = self._tested.having(  # the model does not change before the test phase
            {"OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 0.0}},
            {"OPTIMIZER.num_iterations": 2, "TEST_EVERY_NUM_EPOCH": 1},
            {"MODEL.TRUNK.RESNETS.NORM": "GroupNorm", "MODEL.TRUNK.RESNETS.GROUPNORM_GROUPS": 1},
            {"MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON": False},
        )
        spread = frozen.having(TWO_RANKS, {"DATA.TEST.BATCHSIZE_PER_REPLICA": 2})
        alone = run(frozen, self.folder / "meter").results
        ranks = run_on_ranks(spread, self.folder / "meters")[0].results
        wrong = [key for key in alone if not _near(alone[key], ranks.get(key))]
        expect(bool(alone) and not wrong, f"these values differ on two ranks: {names(wrong)}")

    def _make(self) -> Any:
        return METERS.get(self.component)(**self.arguments)

    def _data(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        outputs = torch.randn(IMAGES, self.classes, generator=draw)
        return outputs, torch.randint(self.classes, (IMAGES,), generator=draw)


def _near(one: Any, other: Any) -> bool:
    return other is not None and math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
