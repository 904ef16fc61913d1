"""`sslengine train DATA`: what it chooses, and that every method trains on photos."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from sslengine.command import machine, train
from sslengine.command.arguments import make_parser
from sslengine.command.front import main
from sslengine.command.machine import Machine
from sslengine.command.recipes import Recipe, methods, methods_with_forms, names_in
from sslengine.command.train import NODES, RANKS, batch_of_rank, choose
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.errors import ConfigError
from sslengine.launch.auto import settle_widths
from sslengine.launch.cli import resolve_all
from sslengine.models.build import build_model, build_trunk
from sslengine.models.options import ModelOptions
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import build_param_groups
from sslengine.python.train import load
from tests.command.photos import SMALL, config_of
from tests.tail import slow_but
from tests.teachers import OF_DISTILLATION, weights_of_timms

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command.md"
TINY = {
    **dict.fromkeys(("dino", "ibot", "dinov2"), "vit_tiny_patch16_224"),
    "dinov3": "vit_small_patch16_dinov3", "swav": "resnet10t", "moco": "resnet10t",
}  # fmt: skip
# The photos are fewer than its clusters and permutations.
FEWER = {
    "ijepa": ["--size", "96"],  # 6 x 6 patches
    "capi": ["--size", "96", "--set", "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.predicted=0.2"],
    "distillation": [
        "--set",
        f"{OF_DISTILLATION}.timm=test_vit",
        "--set",
        f"{OF_DISTILLATION}.weights={weights_of_timms('test_vit')}",
    ],
    "deepclusterv2": ["--set", "LOSS.deepclusterv2_loss.num_clusters=[4]"],
}


def test_a_loss_that_is_not_finite_is_told_once_with_the_command_that_finds_it(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    arguments = ["--method=simclr", "--model=resnet10t", "--lr=1e30", "--batch-size=4", *SMALL]
    run = tmp_path / "a run"
    more = ["--set=LOG_FREQUENCY=1", f"--out={run}"]
    monkeypatch.setattr(sys, "argv", ["sslengine", "train", str(photos), *arguments, *more])
    assert main() == 1
    err = capfd.readouterr().err
    assert len(re.findall("^(?:error|[A-Z]+): ", err, re.M)) == 1
    assert re.search(
        rf"images, of this rank: ({re.escape(str(photos))}/\w+/\d.png(, |\.)){{4}}", err
    )
    assert "(--lr)" in err
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert f"iteration {records[-1]['iteration']} is not finite" in err
    command = shlex.split(re.findall("sslengine (replay .*)", err)[0])
    assert command == ["replay", str(run)]
    assert main(command) == 1
    assert f"error: iteration {records[-1]['iteration']}, rank 0: model." in capfd.readouterr().err


# CLIP takes images with captions: tests/methods/test_clip.py.
@pytest.mark.parametrize(
    "method", slow_but(["mae"], [each for each in methods() if each != "clip"])
)
def test_a_method_trains_on_photos(method: str, photos: Path, tmp_path: Path) -> None:
    model = (
        []
        if method in ("mae", "ijepa", "simmim", "data2vec", "msn", "capi")
        else ["--model", TINY.get(method, "resnet10t")]
    )
    arguments = ["--method", method, *model, *SMALL, *FEWER.get(method, [])]
    out = tmp_path / "run"
    assert main(["train", str(photos), *arguments, "--out", str(out)]) == 0
    assert (out / "checkpoints" / "checkpoint.torch").exists()


def test_a_method_of_a_file_of_ones_own(photos: Path, tmp_path: Path) -> None:
    """In a folder whose name is folded in config.yaml."""
    out = tmp_path / "a folder with a long name, in which spaces are, " / "and one more in it"
    own = "--method=tests.methods.outside.dino:DINO"
    more = ["--model=resnet10t", "--set=LOSS.width=16", "--set=LOSS.prototypes=64", f"--out={out}"]
    assert main(["train", str(photos), own, *SMALL, *more]) == 0
    state = torch.load(out / "checkpoints" / "checkpoint.torch", weights_only=True)
    assert state["classy_state_dict"]["loss"]["center.center"].shape == (1, 64)
    assert str(out) == open_run(out, trusted=True).config.CHECKPOINT.DIR


@pytest.mark.parametrize("method", slow_but(["moco"], names_in("small")))
def test_a_recipe_for_a_cpu_trains_on_photos(method: str, photos: Path, tmp_path: Path) -> None:
    arguments = ["--recipe", f"{method}/cpu", "--set=OPTIMIZER.num_iterations=2", "--batch-size=8"]
    out = tmp_path / "run"
    assert main(["train", str(photos), *arguments, "--precision=fp32", "--out", str(out)]) == 0
    assert (out / "checkpoints" / "checkpoint.torch").exists()
    trunk = load(out)
    assert trunk.feature_dim == trunk(torch.zeros(1, 3, 28, 28)).shape[1] == 224


def test_a_method_without_a_recipe_for_a_cpu_has_its_quickstart(
    photos: Path, tmp_path: Path
) -> None:
    """All of the images, on a CPU, in batches as written: what it says of its shapes is not said."""
    assert {f"{method}/cpu" for method in methods()} <= {*methods_with_forms()}
    train = config_of(str(photos), "--recipe=dino/cpu")
    assert (train.DATA.TRAIN.DATA_LIMIT, train.DATA.TRAIN.BATCHSIZE_PER_REPLICA) == (-1, 64)
    assert (train.MACHINE.DEVICE, train.DISTRIBUTED.NUM_PROC_PER_NODE) == ("cpu", 1)
    out = ["--batch-size=4", "--out", str(tmp_path / "run"), "--set=OPTIMIZER.num_iterations=1"]
    assert main(["train", str(photos), "--recipe=dino/cpu", *out]) == 0
    assert load(tmp_path / "run").feature_dim == 128


FORMS = [each for each in methods_with_forms() if not each.endswith("/lora")]  # of any network


@pytest.mark.parametrize("recipe", slow_but(["simclr/8gpu", "dino/continued"], FORMS))
def test_a_recipe_in_each_form_resolves(recipe: str, photos: Path) -> None:
    weights = [f"--weights={photos / 'dark' / '0.png'}"] if "continued" in recipe else []
    chosen, _ = choose(
        make_parser("sslengine.command.train").parse_args(
            [str(photos), f"--recipe={recipe}", *weights]
        )
    )
    (run,) = resolve_all(chosen, [], True)
    config = settle_widths(run).config
    made_for = config.DISTRIBUTED.NUM_PROC_PER_NODE, config.MACHINE.DEVICE
    form = recipe.rpartition("/")[2]
    if form.startswith("batch"):
        assert int(form.removeprefix("batch")) == config.DATA.TRAIN.BATCHSIZE_PER_REPLICA
    elif form != "continued":
        ranks = 8 if form == "8gpu" else 1
        device = "cpu" if form == "cpu" else "gpu"
        assert made_for == (ranks, device)


TEMPERATURES = [f"{part}_temp_{end}" for part in ("teacher", "patch") for end in ("min", "max")]
BATCHES = [form for form in methods_with_forms() if "/batch" in form]


@pytest.mark.parametrize("recipe", slow_but(["dinov2/batch64", "msn/batch32"], BATCHES))
def test_presets_of_batches_follow_the_rules_of_the_page(recipe: str, photos: Path) -> None:
    """Relative to the recipe, which is for 256 images: docs/methods.md."""
    method, form = recipe.split("/")
    times = int(form.removeprefix("batch")) / 256
    given = (f"--recipe={each}" for each in (f"photos/{method}", recipe))
    configs = [config_of(str(photos), each) for each in given]
    usual, preset = (config.LOSS[f"{method}_loss"] for config in configs)
    highest = configs[1].OPTIMIZER.param_schedulers.lr.schedulers[0].end_value
    assert highest == pytest.approx(0.0005 * times**0.5)
    clusters = {"msn": "num_prototypes", "capi": "num_clusters"}.get(method, "output_dim")
    assert preset[clusters] == usual[clusters] * times
    for key in {"momentum", "momentum_end"} & set(usual):
        assert 1 - preset[key] == pytest.approx((1 - usual[key]) * times, abs=1e-4)
    assert preset.get("koleo_over_ranks", True)
    assert [preset.get(key) for key in TEMPERATURES] == [usual.get(key) for key in TEMPERATURES]
    if method in ("dino", "ibot"):
        assert preset.ema_center == pytest.approx(usual.ema_center**times, abs=1e-3)
    else:  # as published: Sinkhorn, which keeps no centre
        assert preset.get("targets", "sinkhorn") == "sinkhorn"


def test_a_preset_of_a_batch_is_that_of_all_ranks(photos: Path) -> None:
    eight = config_of(str(photos), "--recipe=dinov2/8gpu/batch256").DATA.TRAIN
    assert eight.BATCHSIZE_PER_REPLICA == 32
    other = config_of(str(photos), "--recipe=dinov2/batch256", "--batch-size=4").DATA.TRAIN
    assert other.BATCHSIZE_PER_REPLICA == 4
    for ranks in (RANKS, NODES):
        two = config_of(str(photos), "--recipe=dinov2/batch32", f"--set={ranks}=2").DATA.TRAIN
        assert two.BATCHSIZE_PER_REPLICA == 16
    recipe = Recipe.read(
        make_parser("sslengine.command.train").parse_args([str(photos), "--recipe=dinov2/batch32"])
    )
    with pytest.raises(ConfigError, match="32 images of a step on 3 processes"):
        batch_of_rank(
            make_parser("sslengine.command.train").parse_args([str(photos), "--recipe=x"]),
            recipe,
            3,
        )


def test_short_options_are_keys_of_the_config(photos: Path) -> None:
    config = config_of(
        str(photos), "--method=dino", "--model=vit_tiny_patch16_224", "--epochs=7", "--seed=3",
        "--batch-size=4", "--lr=0.01", "--size=96", "--val=0.25", "--precision=bf16", "--out=here",
        "--workers=5", "--set=LOG_FREQUENCY=9", "--set", "config.LOSS.dino_loss.ema_center=0.5",
    )  # fmt: skip
    train = config.DATA.TRAIN
    assert (config.OPTIMIZER.num_epochs, config.SEED_VALUE, config.LOG_FREQUENCY) == (7, 3, 9)
    assert (train.BATCHSIZE_PER_REPLICA, config.DATA.NUM_DATALOADER_WORKERS) == (4, 5)
    assert train.TRANSFORMS[0].size_crops == [96, 48]
    assert config.MODEL.TRUNK.TIMM.arguments == {"img_size": 96, "dynamic_img_size": True}
    assert config.OPTIMIZER.param_schedulers.lr.schedulers[0].end_value == 0.01
    assert (config.DATA.HOLD_OUT.SHARE, config.DATA.HOLD_OUT.STRATIFIED) == (0.25, True)
    assert (config.MACHINE.PRECISION, config.CHECKPOINT.DIR) == ("bf16", "here")
    assert config.LOSS.dino_loss.ema_center == 0.5
    assert config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP == [["heads.0.prototypes0.weight_v", 1]]


@pytest.mark.parametrize("form", ["", "/continued"])
@pytest.mark.parametrize(
    ("method", "network"),
    [
        ("dinov2", "vit_small_patch14_reg4_dinov2"),
        ("dinov3", "vit_small_patch16_dinov3"),
        ("simclr", "convnext_atto"),
        ("simmim", "vit_tiny_patch16_224"),
    ],
)
def test_what_weight_decay_and_layers_rates_are_for(
    method: str, network: str, form: str, photos: Path
) -> None:
    """None for biases, norms and LayerScale; a fresh mask token has the last layer's rate."""
    which = f"--recipe={method}{form}" if form else f"--method={method}"
    given = [which, f"--model={network}", *(["--pretrained"] if form else [])]
    config = config_of(str(photos), *given)
    with torch.device("meta"):
        model = build_model(read(config, ModelOptions))
    groups = build_param_groups(model, read(config, OptimizerOptions))
    names = {id(each): name for name, each in model.named_parameters()}
    of = {names[id(each)]: group for group in groups for each in group["params"]}
    exempt = {name for name, group in of.items() if group.get("weight_decay") == 0.0}
    vectors = {name for name, each in model.trunk.named_parameters() if each.ndim == 1}
    assert exempt >= {f"trunk.{name}" for name in vectors if f"trunk.{name}" in of}
    assert any("gamma" in name for name in vectors) == (method != "simmim")
    if form and "trunk.mask_token" in of:
        last = next(group for name, group in reversed(of.items()) if ".mlp.fc" in name)
        assert of["trunk.mask_token"]["lr_scale"] == last["lr_scale"] == 0.75 * 0.2


@pytest.mark.parametrize("method", slow_but(["dinov2"], [*TINY]))
def test_low_rank_matrices_are_trained_in_place_of_a_trunk(method: str, photos: Path) -> None:
    """As docs/methods.md has it; of a network of convolutions it is an error."""
    given = [str(photos), f"--recipe={method}/lora", f"--model={TINY[method]}", "--pretrained",
             "--set=MODEL.PRESERVE.WEIGHT=1"]  # fmt: skip
    config = config_of(*given)
    assert (config.MODEL.LORA.RANK, config.MODEL.PRESERVE.WEIGHT) == (8, 1)
    fits = "resnet" not in TINY[method]
    with nullcontext() if fits else pytest.raises(ConfigError, match=r"^config.MODEL.LORA.LAYERS"):
        with torch.device("meta"):
            trunk = build_trunk(read(config, ModelOptions))
        trained = {name for name, each in trunk.named_parameters() if each.requires_grad}
        assert {name.rpartition(".")[2] for name in trained} <= {"lora_A", "lora_B", "mask_token"}


def test_what_is_frozen_for_epochs(photos: Path) -> None:
    frozen = "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP=[[heads.0.layers.0.weight,5]]"
    given = [str(photos), "--recipe=dino/continued", "--pretrained", "--freeze-trunk=2",
             "--model=vit_tiny_patch16_224"]  # fmt: skip
    config = config_of(*given, "--set", frozen)
    prototypes = ["heads.0.prototypes0.weight_v", 1]
    assert [prototypes, ["trunk.*", 2]] == config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP
    assert config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP == [["heads.0.layers.0.weight", 5]]
    said = config_of(*given, "--set=MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP=[]")
    assert said.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP == []


def test_what_is_chosen_is_printed_as_a_command(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--show", "--method=simclr", "--model=resnet10t"]
    assert main(["train", str(photos), *arguments]) == 0
    line, command, *shown = capsys.readouterr().out.splitlines()
    cores = r"\(\d+ cores?\)"
    assert re.fullmatch(
        rf"16 images, resnet10t, .+, (fp32|bf16), batch \d+.*, \d+ loader workers?.* {cores}", line
    )
    assert command.startswith("as: sslengine config=photos/simclr ")
    assert yaml.safe_load("\n".join(shown))["config"]["MODEL"]["TRUNK"]["TIMM"]["model"]
    words = command.removeprefix("as: sslengine ")
    assert f"config.DATA.TRAIN.DATA_PATHS=[{photos}]" in words.replace("'", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["PHOTOS", "--method=simclr", "--model=resnet5"],
         r"neither timm nor torchvision has a network 'resnet5', .* Did you mean 'resnet"),
        (["PHOTOS", "--recipe=photos/dinoo"], r"photos/dino"),
        (["PHOTOS", "--method=mae", "--model=resnet18"],
         r"'resnet18' cannot leave patches out. Name vision_transformer, or a .* of timm's"),
        (["PHOTOS", "--method=capi", "--pretrained"],
         r"the network of photos/capi is a vision_transformer, .* with --model, such as vit_"),
        (["PHOTOS", "--method=simmim", "--model=vit_small_patch14_dinov2"],
         r"masks of photos/simmim have patches of 16 pixels, those of .* have 14"),
        (["PHOTOS", "--recipe=npid+/1gpu"],
         r"there is no method 'npid\+'. Did you mean 'npid\+\+'"),
        (["PHOTOS", "--recipe=3tpu"], r"there is no such config file. +Searched in"),
        (["PHOTOS", "--method=mae", "--recipe=photos/mae"], r"give one of them"),
        (["PHOTOS", "--method=simclr", "--group=a"], r"--group: it says what --val leaves out"),
        (["PHOTOS", "--recipe=simclr/continued"], r"from which weights\? Add --pretrained, or"),
        (["PHOTOS", "--method=simclr", "--out=TAKEN"],
         r"taken contains files that sslengine did not write"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_before_anything_is_trained(
    arguments: list[str], message: str, photos: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(machine.torch.cuda, "is_available", lambda: False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    places = {"PHOTOS": photos, "EMPTY": tmp_path / "empty", "TAKEN": tmp_path / "taken"}
    for name, path in places.items():
        arguments = [each.replace(name, str(path)) for each in arguments]
    assert main(["train", *arguments]) in (1, 2)
    found = capsys.readouterr()
    assert re.search(message, " ".join(found.err.split())), found.err
    assert "step 1/" not in found.out
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]


def test_the_machine_decides_on_batch_and_workers() -> None:
    large = Machine(gpus=4, memory=80 * machine.GIB, cores=64, name="H100")
    assert (large.ranks, large.workers, large.model) == (4, 12, "resnet50")
    assert (large.batch(10**6, False), large.batch(10**6, True)) == (512, 256)
    assert large.batch(1000, False) == 64  # at least two steps an epoch
    small = Machine(gpus=1, memory=8 * machine.GIB, cores=4, name="T4")
    assert (small.batch(10**6, False), small.workers) == (64, 4)
    cpu = Machine(gpus=0, memory=0, cores=1, name="")
    assert (cpu.ranks, cpu.workers, cpu.batch(10, False), str(cpu)) == (1, 0, 4, "CPU, 1 core")
    apple = Machine(gpus=0, memory=11 * machine.GIB, cores=8, name="", apple=True)
    assert (apple.device, apple.ranks, apple.workers, apple.model) == ("mps", 1, 7, "resnet50")
    assert apple.batch(10**6, False) == 64


def test_networks_without_model_are_those_of_the_page() -> None:
    """With a GPU, and without one."""
    large = Machine(gpus=1, memory=80 * machine.GIB, cores=8, name="H100")
    cpu = Machine(gpus=0, memory=0, cores=8, name="")
    of: dict[str, list[str]] = {}
    for method in methods():
        given = make_parser("sslengine.command.train").parse_args(["photos", f"--method={method}"])
        recipe = Recipe.read(given)
        there, without = (
            str(train._network(given, recipe, each.model) or recipe.trunk) for each in (large, cpu)
        )
        if (there, without) != ("resnet50", "resnet18"):
            assert there == without
            of.setdefault(there, []).append(f"`{method}`")
    assert len(of["vision_transformer"]) < len(methods()) / 2
    (row,) = re.findall(r"^\| network \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    default, *others = row.removesuffix(", a ViT-S/16").split("; ")
    assert default == "`resnet50`, without a GPU `resnet18`"
    assert others == sorted(
        (f"of {', '.join(names)} it is `{each}`" for each, names in of.items()),
        key=lambda text: ("vision_transformer" in text, text),
    )


def test_apples_gpu_is_taken_where_there_is_none_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for there, device in ((False, "cpu"), (True, "mps")):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 11 * machine.GIB)
        assert machine.look().device == device
    assert machine.look("mps").memory == 11 * machine.GIB
    assert machine.look("cpu").device == "cpu"
    with pytest.raises(ConfigError, match="--device gpu: .* --device mps takes Apple's"):
        machine.look("gpu")
    with pytest.raises(ConfigError, match=r"--device: .* 'gppu'. Did you mean 'gpu'"):
        machine.look("gppu")
    with pytest.raises(ConfigError, match="--gpus 2: with --device mps there is one"):
        machine.look("mps", 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device mps: torch finds no GPU of Apple's"):
        machine.look("mps")
