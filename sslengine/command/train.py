"""Train on a folder of images, or run a config.

    sslengine train ~/photos --method dino --model vit_small_patch16_224 --out runs/birds
    sslengine train ~/photos --recipe photos/simclr --set OPTIMIZER.num_epochs=50 --show
    sslengine train config=quickstart/simclr config.SEED_VALUE=1

DATA is a folder of images (folders in it are classes, which training does not read), a .csv or
.parquet table, .npy or .npz arrays, or a folder of .tar shards. Images of many bands, or of more
than 8 bits, keep their values, and the recipe's views change no colours. Options stand for keys of
the config, and the command that says the same with config=... is printed. Any other key: --set
KEY=VALUE. The config with all that was chosen: --show.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sslengine.command.text import overrides, typed
from sslengine.config.compose import compose, shipped_configs
from sslengine.errors import ConfigError, UnknownNameError, listing, nearest
from sslengine.launch import cli
from sslengine.registry import import_dotted

# What a method's short name means in configs/photos.
RECIPES = "photos"
# The largest side of images in the recipes.
SIDE = 224
# The small crops of a multi-crop list are a multiple of this, the patches of most transformers.
PATCH = 16
# Modules of timm whose networks take images of another side, by an argument.
TRANSFORMERS = ("vision_transformer", "deit", "eva", "beit")


def methods() -> list[str]:
    return sorted(path.stem for path in (shipped_configs() / RECIPES).glob("*.yaml"))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine train", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("data", metavar="DATA", help="images: see above")
    add("--method", metavar="NAME", help="see `sslengine list methods`")
    add("--recipe", metavar="NAME", help="a config in place of the method's: `list recipes`")
    add("--model", metavar="NAME", help="any of timm's; default: resnet50, without a GPU resnet18")
    add("--pretrained", action="store_true", help="start from the model's weights that timm has")
    add("--weights", metavar="FILE", help="start from these weights")
    add("--epochs", type=int, metavar="N")
    add("--size", type=int, metavar="PIXELS", help="side of the images; default: 224")
    add("--batch-size", type=int, metavar="N", help="images of each GPU, or of the CPU")
    add("--lr", type=float, metavar="RATE", help="the largest learning rate, for this batch size")
    add("--val", type=float, metavar="SHARE", help="leave out a share of the images, to judge by")
    add("--seed", type=int, metavar="N")
    add("--device", choices=("auto", "gpu", "cpu"), default="auto")
    add("--gpus", type=int, metavar="N", help="default: all of this machine")
    add("--precision", choices=("auto", "fp32", "tf32", "bf16", "fp16"))
    add("--workers", type=int, metavar="N", help="processes of each rank that load images")
    add("--out", metavar="DIR", help="folder of the run; default: runs/METHOD-MODEL")
    add("--set", action="append", default=[], dest="values", metavar="KEY=VALUE",
        help="any key of the config, `config.` before it may be left out")  # fmt: skip
    add(
        "--config-dir", action="append", default=[], metavar="DIR", help="a folder of your own YAML"
    )
    add("--show", action="store_true", help="print the config that results, without training")
    return parser


def main(arguments: Sequence[str]) -> int:
    if _is_config(arguments):
        return cli.main(arguments)
    given = make_parser().parse_args(arguments)
    chosen, line = choose(given)
    print(line)
    print(f"as: {shlex.join(['sslengine', *chosen])}", flush=True)
    folders = [text for each in given.config_dir for text in ("--config-dir", each)]
    return cli.main([*chosen, *folders, *(["--show"] if given.show else [])])


def _is_config(arguments: Sequence[str]) -> bool:
    return any(each.startswith("config=") for each in arguments)


@dataclass(frozen=True)
class Recipe:
    """What the YAML says that options depend on."""

    name: str
    views: list[dict[str, Any]]
    trunk: str
    frozen: list[str]  # parameters that do not change for some steps

    @classmethod
    def of(cls, given: argparse.Namespace) -> Recipe:
        name = _name_of_recipe(given)
        said = compose([f"config={name}"], given.config_dir).last_value
        frozen = said("config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP") or []
        return cls(
            name,
            said("config.DATA.TRAIN.TRANSFORMS") or [],
            said("config.MODEL.TRUNK.NAME") or "",
            [parameter for parameter, _ in frozen] if given.method else [],
        )

    @property
    def many_views(self) -> bool:
        return any("size_crops" in each for each in self.views)

    @property
    def takes_any_network(self) -> bool:
        return self.trunk == "timm"


def choose(given: argparse.Namespace) -> tuple[list[str], str]:
    """The arguments of the command with config=..., and a line on what was chosen."""
    recipe = Recipe.of(given)
    data = import_dotted("sslengine.command.images:look")(given.data)
    found = import_dotted("sslengine.command.machine:look")(given.device, given.gpus)
    bands = None if _says_pixels(given) else import_dotted("sslengine.command.bands:look")(data)
    if bands:
        recipe = replace(recipe, views=bands.views(recipe.views))
    model = _model_name(given, recipe, found.model)
    count = len(data.source)
    trained_on = count - round(count * (given.val or 0))
    batch = given.batch_size or found.batch(trained_on, recipe.many_views)
    values = {
        **data.keys(),
        **(bands.keys() | {"DATA.TRAIN.TRANSFORMS": recipe.views} if bands else {}),
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": batch,
        "DATA.NUM_DATALOADER_WORKERS": found.workers,
        "MACHINE.DEVICE": "gpu" if found.gpus else "cpu",
        "DISTRIBUTED.NUM_PROC_PER_NODE": found.ranks,
        "CHECKPOINT.DIR": "runs/" + "-".join(filter(None, (recipe.name.split("/")[-1], model))),
        **(_network(model, given.size or SIDE, recipe.many_views) if model else {}),
        **_given(given),
        **_sides(recipe, given.size),
    }
    if recipe.frozen:
        steps = max(1, trained_on // (batch * found.ranks))
        values["MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"] = [[each, steps] for each in recipe.frozen]
    if given.val is not None:
        values |= {"DATA.HOLD_OUT.SHARE": given.val, "DATA.HOLD_OUT.STRATIFIED": data.has_classes}
    line = f"{count} images, {model or recipe.trunk}, batch {batch}, {found}"
    if bands:
        line += f"\n{bands}"
    return [f"config={recipe.name}", *overrides(values), *typed(given.values)], line


def _says_pixels(given: argparse.Namespace) -> bool:
    keys = ("IMAGE_MODE", "PIXEL_RANGE", "TRANSFORMS")
    return any(f"DATA.TRAIN.{key}" in each for each in given.values for key in keys)


def _name_of_recipe(given: argparse.Namespace) -> str:
    if bool(given.method) == bool(given.recipe):
        raise ConfigError(
            f"--method, --recipe: give one of them. Methods: {listing(methods())}; recipes: "
            f"`sslengine list recipes`."
        )
    if given.method and given.method not in methods():
        raise UnknownNameError(
            f"--method: there is no recipe for {given.method!r}. "
            f"{nearest(given.method, methods())}\n  There is one for: {listing(methods())}"
        )
    return str(given.recipe or f"{RECIPES}/{given.method}")


def _model_name(given: argparse.Namespace, recipe: Recipe, usual: str) -> str:
    """Empty: the recipe's own."""
    if recipe.takes_any_network or given.recipe:
        return given.model or ("" if given.recipe else usual)
    if given.model or given.pretrained:
        raise ConfigError(
            f"--model, --pretrained: the network of {recipe.name} is a {recipe.trunk}. Leave them "
            f"out; its sizes are keys of MODEL.TRUNK, see --show."
        )
    return ""


def _network(name: str, side: int, many_views: bool) -> dict[str, Any]:
    import timm

    if not timm.is_model(name):
        raise UnknownNameError(
            f"--model: timm has no {name!r}. {nearest(name, timm.list_models())}".rstrip()
        )
    arguments: dict[str, Any] = {}
    if timm.model_entrypoint(name).__module__.rpartition(".")[2] in TRANSFORMERS:
        native = timm.get_pretrained_cfg(name)
        if native is None or native.input_size[-1] != side:
            arguments["img_size"] = side
        if many_views:
            arguments["dynamic_img_size"] = True
    chosen = {"NAME": "timm", "TIMM.model": name, **({"TIMM.arguments": arguments} if arguments
              else {})}  # fmt: skip
    return {f"MODEL.TRUNK.{key}": value for key, value in chosen.items()}


def _given(given: argparse.Namespace) -> dict[str, Any]:
    keys = {
        "OPTIMIZER.num_epochs": given.epochs,
        "OPTIMIZER.param_schedulers.lr.peak": given.lr,
        "SEED_VALUE": given.seed,
        "MACHINE.PRECISION": given.precision,
        "DATA.NUM_DATALOADER_WORKERS": given.workers,
        "MODEL.WEIGHTS_INIT.PARAMS_FILE": given.weights,
        "MODEL.TRUNK.TIMM.pretrained": given.pretrained or None,
        "CHECKPOINT.DIR": given.out,
    }
    return {key: value for key, value in keys.items() if value is not None}


def _sides(recipe: Recipe, size: int | None) -> dict[str, Any]:
    """Of the views, which are entries of a list, and of a network that is made for one size."""
    values: dict[str, Any] = {}
    if size in (None, SIDE):
        return values
    for number, entry in enumerate(recipe.views):
        place = f"DATA.TRAIN.TRANSFORMS.{number}"
        if isinstance(entry.get("size"), int):
            values[f"{place}.size"] = size
        if "size_crops" in entry:
            values[f"{place}.size_crops"] = [_scaled(each, size) for each in entry["size_crops"]]
    if recipe.trunk == "vision_transformer":
        values["MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE"] = size
    return values


def _scaled(side: int, largest: int) -> int:
    return largest if side == SIDE else max(PATCH, round(side * largest / SIDE / PATCH) * PATCH)
