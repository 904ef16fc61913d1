from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from PIL import ImageFilter
from torch import nn

from sslengine.config.sections import fields_of, read
from sslengine.data.augment.pipeline import build_transform
from sslengine.errors import ConfigError
from sslengine.hooks.default import make_extra
from sslengine.meters.base import Meter
from sslengine.models.build import build_module
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.writers import Writer, build_writer
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.schedules import build_schedule
from sslengine.registry import (
    HEADS,
    HOOKS,
    LOSSES,
    METERS,
    MODELS,
    OPTIMIZERS,
    TRAIN_STEPS,
    TRUNKS,
    WRITERS,
    Registry,
    register_scheduler,
)
from tests.config.recipes import resolved
from tests.data.pictures import picture
from tests.registries import as_before


def _problem(**changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        resolved(**changes)
    return str(error.value)


def test_a_dotted_path_stands_for_a_name() -> None:
    config = resolved(LOSS={"name": "sslengine.methods.simclr:SimCLRLoss"}).config
    assert config.LOSS.SimCLRLoss.temperature == 0.1
    assert "has no 'Nothing'" in _problem(LOSS={"name": "sslengine.methods.simclr:Nothing"})


def test_a_module_that_cannot_be_imported_is_told_whatever_options_its_loss_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_loss.py").write_text("\nimport not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = _problem(LOSS={"name": "broken_loss:SupCon", "SupCon": {"temperature": 0.3}})
    assert text.startswith("config.LOSS.name: ")
    assert "not_there_at_all" in text
    assert f"{tmp_path / 'broken_loss.py'}, line 2" in text


def test_plain_mistakes_come_first_then_those_for_which_components_are_imported() -> None:
    loss = {"name": "simclr_info_nce_loss", "simclr_info_nce_loss": {"temperatur": 1}}
    text = _problem(LOSS=loss, SLURM__PORT_ID=3)
    assert "config.SLURM.PORT_ID" in text
    assert "temperatur" not in text
    assert "config.LOSS.simclr_info_nce_loss.temperatur: unknown key" in _problem(LOSS=loss)


def test_what_refers_to_the_options_of_a_component_is_checked_with_them() -> None:
    loss = {"name": "simclr_info_nce_loss", "simclr_info_nce_loss": {"temperature": -4.0}}
    reference = "${config.LOSS.simclr_info_nce_loss.temperature}"
    assert "weight_decay: expected 0 or more" in _problem(
        LOSS=loss, OPTIMIZER__weight_decay=reference
    )
    loss["simclr_info_nce_loss"] = {"temperature": 0.2}
    config = resolved(LOSS=loss, OPTIMIZER__weight_decay=reference).config
    assert config.OPTIMIZER.weight_decay == 0.2


def test_transforms_of_another_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blur = {"name": "Blur", "transform_type": "augly", "radius": 2.0}

    def problem(**changes: object) -> str:
        return _problem(DATA__TRAIN__TRANSFORMS=[{**blur, **changes}, {"name": "ToTensor"}])

    key = "config.DATA.TRAIN.TRANSFORMS.0"
    assert f"{key}.transform_type: expected one of augly, got 'ugly'" in problem(
        transform_type="ugly"
    )
    # What the package's page says of it, in a stand-in of that name.
    (tmp_path / "augly").mkdir()
    (tmp_path / "augly" / "__init__.py").touch()
    (tmp_path / "augly" / "image.py").write_text(
        "from PIL import ImageFilter\n"
        "class Blur:\n"
        "    def __init__(self, radius: float = 2.0, p: float = 1.0): self.radius = radius\n"
        "    def __call__(self, image): return image.filter(ImageFilter.GaussianBlur(self.radius))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert f"{key}.radios: Blur takes no such argument. Did you mean 'radius'" in problem(radios=1)
    assert "has no 'Blurr'" in problem(name="Blurr")
    image = picture(0)
    blurred = build_transform(blur, "here")(image)
    assert blurred.tobytes() == image.filter(ImageFilter.GaussianBlur(2.0)).tobytes()


@dataclasses.dataclass
class SharpOptions:
    # How sharp.
    sharpness: int = 3
    dims: list[int] = dataclasses.field(default_factory=lambda: [4, 2])

    def check(self) -> Iterator[str]:
        if self.sharpness < 1:
            yield f"sharpness: expected 1 or more, got {self.sharpness}."


class Sharp(nn.Module):
    """It is made with one object of its options, behind what the engine gives."""

    def __init__(self, *given: Any) -> None:
        super().__init__()
        *self.engines, self.options = given

    def on_start(self, task: Any) -> None: ...


class SharpWriter(Writer):
    def __init__(self, run: Any, options: SharpOptions) -> None:
        self.engines, self.options = [run], options

    def write(self, record: Any) -> None: ...


NAME = "check_test_with_options"
HEADS.register(NAME, options=SharpOptions)(Sharp)
HOOKS.register(NAME, options=SharpOptions)(Sharp)
WRITERS.register(NAME, options=SharpOptions)(SharpWriter)
KINDS = {
    "MODEL__HEAD__PARAMS": (lambda **its: [[NAME, its]], lambda each: build_module([NAME, each], "")),
    "HOOKS__EXTRA": (lambda **its: [{"name": NAME, **its}], lambda each: make_extra({"name": NAME, **each})),
    "HOOKS__WRITERS": (
        lambda **its: [{"name": NAME, **its}],
        lambda each: build_writer({"name": NAME, **each}, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", KINDS)
def test_hooks_writers_and_heads_bring_a_dataclass_as_methods_do(place: str) -> None:
    entry, make = KINDS[place]
    where = place.replace("__", ".") + (".0.1" if place.startswith("MODEL") else ".0")
    resolved(**{place: entry(sharpness=5)})
    for wrong, said in (
        (
            {"sharpnes": 5},
            "sharpnes: SharpOptions takes no such argument. Did you mean 'sharpness'",
        ),
        ({"sharpness": "very"}, "sharpness: expected int, got 'very'"),
        ({"sharpness": 0}, "sharpness: expected 1 or more, got 0"),
    ):
        with pytest.raises(ConfigError, match=rf"config\.{where}\.{said}"):
            resolved(**{place: entry(**wrong)})
    assert make({"sharpness": 5}).options == SharpOptions(5, [4, 2])
    assert make({}).options == SharpOptions()
    assert len(make({}).engines) == (place == "HOOKS__WRITERS")


def test_the_options_of_a_head_may_leave_the_width_open() -> None:
    resolved(MODEL__HEAD__PARAMS=[[NAME, {"dims": ["auto", 8]}]])


@dataclasses.dataclass
class SawtoothOptions:
    # The first value.
    start_value: float = 0.5
    # How many there are.
    teeth: int = 2

    def check(self) -> Iterator[str]:
        if self.teeth < 1:
            yield f"teeth: expected 1 or more, got {self.teeth}."


@register_scheduler("check_test_sawtooth", options=SawtoothOptions)
def _sawtooth(options: SawtoothOptions) -> Any:
    return lambda where: options.start_value * (1 - where * options.teeth % 1)


def test_so_do_schedulers() -> None:
    def lr(**its: Any) -> dict[str, Any]:
        return {"OPTIMIZER__param_schedulers": {"lr": {"name": "check_test_sawtooth", **its}}}

    run = resolved(**lr(start_value=0.25, args={"teeth": 4}))
    options = read(run.config, OptimizerOptions).schedulers()["lr"]
    assert build_schedule(options, 2).value(0.125) == 0.125
    for its, said in (
        (
            {"args": {"teth": 4}},
            "teth: SawtoothOptions takes no such argument. Did you mean 'teeth'",
        ),
        ({"args": {"teeth": 0}}, "teeth: expected 1 or more, got 0"),
    ):
        with pytest.raises(ConfigError, match=rf"param_schedulers.lr.{said}"):
            resolved(**lr(**its))
    assert any("param_schedulers.lr.power" in each for each in resolved(**lr(power=2.0)).warnings)


def _with_options(section: str, registry: Registry[Any]) -> Iterator[tuple[str, str]]:
    """Each component of sslengine that has options: its key path, and one of its keys."""
    for name in registry.names():
        options = registry.options(name) if registry.owner(name).startswith("sslengine.") else None
        if options is not None:
            yield f"{section}.{name}", dataclasses.fields(options)[0].name


BLOCKS = (("LOSS", LOSSES), ("TRAINER", TRAIN_STEPS), ("MODEL", MODELS), ("METERS", METERS))


def test_the_options_of_what_is_not_chosen_are_checked_as_well() -> None:
    """VISSL's YAML has such blocks: they are read, and a key in them is known or an error."""
    components = [each for section, registry in BLOCKS for each in _with_options(section, registry)]
    trunks = [
        (f"MODEL.TRUNK.{key}", next(iter(fields_of(node))))
        for key, node in resolved().config.MODEL.TRUNK.items()
        if isinstance(node, DictConfig) and fields_of(node)
    ]
    assert len(components) > 12
    assert len(trunks) > 10
    # An error tells of twelve keys at most, and of those of the schema first.
    starts = range(0, len(components), 12)
    for some in (*(components[each : each + 12] for each in starts), trunks[:8], trunks[8:]):
        changes = {f"{path}.{key}x".replace(".", "__"): 1 for path, key in some}
        with pytest.raises(ConfigError) as told:
            resolved(**changes)
        for path, key in some:
            hint = rf"config.{re.escape(path)}.{key}x: unknown key. Did you mean '{key}'"
            assert re.search(hint, str(told.value)), path


def test_so_are_the_arguments_of_a_loss_of_torch_that_is_not_chosen() -> None:
    with pytest.raises(ConfigError, match=r"LOSS.MSELoss.reductio: .* Did you mean 'reduction'"):
        resolved(LOSS__MSELoss__reductio="sum")


class _NoComponent:
    pass


class _HalfAMeter(Meter):
    def update(self, output: Any, target: Any) -> None:
        raise AssertionError("a meter also says what it measures")


@pytest.mark.parametrize(
    ("registry", "key", "thing", "expected"),
    [
        (METERS, "METERS__names.0", _HalfAMeter, "a class that defines measure"),
        (METERS, "METERS__names.0", _NoComponent, "a class that derives from Meter"),
        (TRUNKS, "MODEL__TRUNK__NAME", nn.Linear, "a class that derives from Trunk"),
        (TRUNKS, "MODEL__TRUNK__NAME", Trunk, "a class that defines features"),
        (OPTIMIZERS, "OPTIMIZER__name", _NoComponent, "a class that derives from Optimizer"),
    ],
)  # fmt: skip
def test_a_registered_class_is_of_its_kind(
    registry: Registry[Any], key: str, thing: Any, expected: str
) -> None:
    with as_before(registry):
        registry.register("mine")(type("Mine", (thing,), {"__module__": "my_file"}))
        field = key.removesuffix(".0")
        problem = _problem(**{field: ["mine"] if field != key else "mine"})
    where = "config." + key.replace("__", ".")
    assert f"{where}: 'mine' cannot be used as {registry.kind}: expected {expected}" in problem
