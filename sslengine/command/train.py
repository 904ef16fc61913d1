"""Train on a folder of images, or run a config.

    sslengine train ~/photos
    sslengine train ~/photos --method dino --model vit_small_patch16_224 --out runs/birds
    sslengine train ~/photos --recipe photos/simclr --set OPTIMIZER.num_epochs=50 --show
    sslengine train ~/photos --recipe dino/1gpu/continued --pretrained
    sslengine train config=quickstart/simclr config.SEED_VALUE=1

DATA is a folder of images (folders in it are classes, which training does not read), a .csv, .tsv
or .parquet table, a list of paths (.txt, or .npy), .npy or .npz arrays, videos, .tar shards (a
folder, a pattern, addresses on a server), parquet files with images in them, or a dataset of the
hub (hf://datasets/USER/NAME). Images of many bands, or of more than 8 bits, keep their values, and
the recipe's views change no colours. Options stand for keys of the config; the command, and what
says the same with config=..., are written to command.sh in the run's folder. Any other key: --set
KEY=VALUE. The config with all that was chosen: --show.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sslengine.command import arguments as args
from sslengine.command import data, networks
from sslengine.command.arguments import Argument
from sslengine.command.networks import StockNetwork
from sslengine.command.recipes import PATCH, Recipe, own_method, size_keys
from sslengine.config.compose import overrides, typed
from sslengine.config.options import DistributedOptions, MachineOptions
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import ConfigError, readable
from sslengine.launch import cli
from sslengine.launch.folder import expect_place
from sslengine.methods import DEFAULT
from sslengine.registry import component_key, load_plugins

# Keys of the config.
BATCH, LOADERS = "DATA.TRAIN.BATCHSIZE_PER_REPLICA", "DATA.NUM_DATALOADER_WORKERS"
COMPUTES_ON = "MACHINE.DEVICE"
RANKS, NODES = "DISTRIBUTED.NUM_PROC_PER_NODE", "DISTRIBUTED.NUM_NODES"
PRECISION = "MACHINE.PRECISION"
FROZEN = "MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP"
# The side of the patches that a collator masks.
MASKED_PATCH = "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"
LIMIT, HELD_OUT = "DATA.TRAIN.DATA_LIMIT", "DATA.HOLD_OUT.SHARE"
TIMM_ARGUMENTS = "MODEL.TRUNK.TIMM.arguments"


ARGUMENTS = (
    Argument("data", "images: see above", metavar="DATA"),
    Argument("--method", f"see `list methods`, or FILE.py:CLASS; default {DEFAULT}", metavar="NAME",
             listed="methods"),
    Argument("--recipe", "a config in place of the method's: `list recipes`", metavar="NAME",
             listed="recipes"),
    Argument("--model", "any network of timm's or torchvision's, or a trunk: `list models`; "
             "default: resnet50, without a GPU resnet18", metavar="NAME"),
    replace(args.PLUGINS, help="a module of yours that registers trunks, methods, sources ..."),
    Argument("--pretrained", "start from the model's weights that timm has", bool),
    Argument("--weights", "start from these weights", metavar="FILE"),
    Argument("--trust-pickle", "allow the file of weights to run code", bool, python=False),
    Argument("--freeze-trunk", "train only heads in the first epochs", int, "EPOCHS", least=0),
    Argument("--epochs", kind=int, metavar="N", least=1),
    Argument("--size", "side of the largest view of an image", int, "PIXELS", least=1),
    Argument("--batch-size", "images of each GPU, or of the CPU", int, "N", least=1),
    Argument("--lr", "the largest learning rate, for this batch size", float, "RATE"),
    Argument("--val", "leave out a share of the images, to judge by", float, "SHARE"),
    args.IMAGE_COLUMN,
    args.LABEL_COLUMN,
    Argument("--group", "--val leaves out whole groups: images with one value here",
             metavar="COLUMN"),
    Argument("--stream", "read .tar shards, or parquet files with images in them, from one end to "
             "the other: no index, no copy; takes --length", bool),
    Argument("--length", "images of an epoch of a stream", int, "N", least=1),
    Argument("--seed", kind=int, metavar="N"),
    args.DEVICE,
    Argument("--gpus", "default: all of this machine", int, "N", least=0),
    Argument("--precision", choices=("auto", "fp32", "tf32", "bf16", "fp16")),
    replace(args.WORKERS, help="processes of each rank that load images"),
    Argument("--out", "folder of the run; default: runs/METHOD-MODEL", metavar="DIR"),
    replace(args.VALUES, help="any key of the config, `config.` before it may be left out"),
    replace(args.CONFIG_DIR, help="a folder of your own YAML"),
    Argument("--show", "print the config that results, without training", bool, python=False),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    if any(each.startswith("config=") for each in arguments):
        return cli.main(arguments)
    given = args.make_parser(__name__).parse_args(arguments)
    chosen, line = choose(given)
    print(readable(line, but="\n"), flush=True)
    if given.show:
        print(readable(f"as: {shlex.join(['sslengine', *chosen])}"), flush=True)
    folders = [text for each in given.config_dir for text in ("--config-dir", each)]
    return cli.main([*chosen, *folders, *(["--show"] if given.show else [])])


def choose(given: argparse.Namespace, label_file: str = "") -> tuple[list[str], str]:
    """Return the arguments of the command with config=..., and a line on what was chosen.

    label_file: of arrays in memory.
    """
    if given.val is not None and not 0 < given.val < 1:
        raise ConfigError(f"--val: expected a share, such as 0.1; got {given.val:g}.")
    by_default = not (given.method or given.recipe)
    own = own_method(given.method or "")
    given.method = DEFAULT if by_default or own else given.method
    recipe = Recipe.read(given)
    load_plugins(recipe.plugins(given.plugins))  # names that they register are names from here on
    if given.weights is not None:
        args.expect_weights(given.weights, "--weights")
    if given.model:  # its name, before images are looked at
        networks.find(given.model)
    if given.out:
        expect_place(Path(given.out).expanduser())
    from sslengine.command import bands, machine

    images = data.look(
        given.data, lambda key: recipe.said(f"DATA.TRAIN.{key}"), label_file, streams=True,
        as_stream=given.stream,
    )  # fmt: skip
    found = machine.look(given.device, given.gpus)
    pixels = [f"DATA.TRAIN.{key}" for key in ("IMAGE_MODE", "PIXEL_RANGE", "TRANSFORMS")]
    says_pixels = any(key in each for each in given.values for key in pixels)
    measured = None if says_pixels else bands.look(images)
    if measured:
        recipe = replace(recipe, views=measured.views(recipe.views))
    network = _network(given, recipe, found.model)
    count = len(images.source)
    trained_on = _count_trained_on(given, recipe, count)
    name = component_key(network.name) if network else ""
    values = {
        **images.keys(labels=bool(recipe.said("DATA.TRAIN.LABEL_SOURCES"))),
        **_machine_keys(given, recipe, found, trained_on),
        **({LIMIT: -1} if recipe.makes_shapes and recipe.said(LIMIT) else {}),
        **(measured.keys(recipe.views) if measured else {}),
        "CHECKPOINT.DIR": "runs/"
        + "-".join(filter(None, (component_key(own) or recipe.name.split("/")[-1], name))),
        **({"LOSS.name": own} if own else {}),
        **(_trunk(network, given, recipe) if network else {}),
        **_given(given),
        **_sides(network, given, recipe),
        **_held_out(given, recipe, images),
    }
    if given.freeze_trunk:
        values[FROZEN] = [*(recipe.said(FROZEN) or []), ["trunk.*", given.freeze_trunk]]
    line = f"{count} images, {name or recipe.trunk}, {_computed_by(values, recipe, found)}"
    if measured:
        line += f"\n{measured}"
    if by_default:
        line += f"\nmethod {DEFAULT}, the default; others: sslengine list methods"
    return [*recipe.files, *overrides(values), *typed(given.values)], line


def _held_out(given: argparse.Namespace, recipe: Recipe, images: Any) -> dict[str, Any]:
    """Hold out a share of every class, where each image has one and no groups are kept whole."""
    if given.val is None and given.group:
        raise ConfigError("--group: it says what --val leaves out. Add --val SHARE.")
    if given.val is None:
        return {}
    stratified = images.has_one_class_each and not recipe.said(data.GROUP)
    return {HELD_OUT: given.val, "DATA.HOLD_OUT.STRATIFIED": stratified}


def _count_trained_on(given: argparse.Namespace, recipe: Recipe, images: int) -> int:
    """Leave out those that are held out: what --set says wins, then --val, then the recipe."""
    said = (recipe.typed(HELD_OUT), given.val, recipe.said(HELD_OUT))
    return images - round(images * next((each for each in said if each is not None), 0))


def _machine_keys(
    given: argparse.Namespace, recipe: Recipe, found: Any, images: int
) -> dict[str, Any]:
    if recipe.made_for_a_machine:
        device = None if given.device == "auto" else given.device
        batch = batch_of_rank(given, recipe, given.gpus or recipe.said(RANKS) or 1)
        asked = {BATCH: batch, RANKS: given.gpus, COMPUTES_ON: device}
        return {key: value for key, value in asked.items() if value is not None}
    batch = batch_of_rank(given, recipe, found.ranks)
    return {
        BATCH: batch or found.batch(images, recipe.many_views),
        LOADERS: found.workers,
        COMPUTES_ON: found.device,
        RANKS: found.ranks,
    }


def batch_of_rank(given: argparse.Namespace, recipe: Recipe, ranks: int) -> int | None:
    """Return what was asked for, in the recipe's name or by itself. ranks: --set wins."""
    if recipe.batch is None or given.batch_size or recipe.typed(BATCH):
        return given.batch_size  # type: ignore[no-any-return]
    ranks = (recipe.typed(RANKS) or ranks) * (recipe.said(NODES) or 1)
    if recipe.batch % ranks:
        raise ConfigError(
            f"--recipe {given.recipe}: {recipe.batch} images of a step on {ranks} processes: it is "
            f"not a multiple of them. Choose another number of --gpus."
        )
    return recipe.batch // ranks


def _computed_by(values: Mapping[str, Any], recipe: Recipe, found: Any) -> str:
    """Say the device, precision, workers and batch that the run will have.

    They are those of --set, of this command, of the recipe, or the defaults.
    """
    defaults = {
        COMPUTES_ON: MachineOptions().DEVICE,
        RANKS: DistributedOptions().NUM_PROC_PER_NODE,
        PRECISION: "mixed" if recipe.said("MODEL.AMP_PARAMS.USE_AMP") else "fp32",
        LOADERS: DataOptions().NUM_DATALOADER_WORKERS,
        BATCH: SplitOptions().BATCHSIZE_PER_REPLICA,
    }
    said = (
        (recipe.typed(key), values.get(key), recipe.said(key), default)
        for key, default in defaults.items()
    )
    return str(found.told(*(next(each for each in some if each is not None) for some in said)))


def _network(given: argparse.Namespace, recipe: Recipe, usual: str) -> StockNetwork | None:
    """Return the network to train; None for the recipe's own, as it is."""
    if given.model:
        network = networks.find(given.model)
        network.expect_for(recipe.name, recipe.hides, recipe.reads_class_token)
        return network
    if not recipe.takes_any_network:
        if given.pretrained:
            raise ConfigError(
                f"--pretrained: the network of {recipe.name} is a {recipe.trunk}, of which no "
                f"library has weights. Name one of timm's with --model, such as {networks.A_VIT}, "
                f"or give a file with --weights."
            )
        return None
    if given.method:
        return recipe.network if recipe.hides == "mask" else networks.find(usual)
    return recipe.network if given.size or given.pretrained else None


def _trunk(network: StockNetwork, given: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    side = given.size or recipe.side or networks.SIDE
    keys = network.keys(side, recipe.many_views, given.pretrained)
    more: dict[str, Any] = {}
    if network == recipe.network:
        more = recipe.said(TIMM_ARGUMENTS) or {}
        more |= {"img_size": side} if "img_size" in more and given.size else {}
    elif recipe.averages_patches and network.pools_class_token:
        more = {"global_pool": "avg", "fc_norm": False}
    if network.library == "timm" and (more or TIMM_ARGUMENTS in keys):
        keys[TIMM_ARGUMENTS] = {**more, **keys.get(TIMM_ARGUMENTS, {})}
    return keys


def _given(given: argparse.Namespace) -> dict[str, Any]:
    keys = {
        "OPTIMIZER.num_epochs": given.epochs,
        "OPTIMIZER.param_schedulers.lr.peak": given.lr,
        "SEED_VALUE": given.seed,
        "MACHINE.PRECISION": given.precision,
        LOADERS: given.workers,
        "MODEL.WEIGHTS_INIT.PARAMS_FILE": given.weights and str(Path(given.weights)),
        "MODEL.WEIGHTS_INIT.TRUST_PICKLE": given.trust_pickle or None,
        "CHECKPOINT.DIR": given.out and str(Path(given.out)),
        "PLUGINS": given.plugins or None,
        **data.train_keys(given),
    }
    return {key: value for key, value in keys.items() if value is not None}


def _sides(
    network: StockNetwork | None, given: argparse.Namespace, recipe: Recipe
) -> dict[str, Any]:
    """Size the views, which are entries of a list, masks, and a network made for one size."""
    size = given.size or recipe.side
    if not size or not (given.size or network):
        return {}
    own = StockNetwork("", recipe.trunk) if not network and not recipe.takes_any_network else None
    in_parts = given.size or recipe.hides or recipe.many_views or recipe.teacher
    patch = _patch(network or own, recipe) if in_parts else None
    values = size_keys(recipe.views, size, patch)
    if own and own.section:
        values[f"MODEL.TRUNK.{own.section}.IMAGE_SIZE"] = size
    return values | (_masks(recipe, network, patch) if network and patch else {})


def _patch(network: StockNetwork | None, recipe: Recipe) -> int | None:
    """Return the side that is whole patches of the network and of its teacher."""
    found = [recipe.teacher.patch_side] if recipe.teacher else []
    if network is not None:
        own = not network.library and network.section
        said = recipe.said(f"MODEL.TRUNK.{network.section}.PATCH_SIZE") if own else None
        found.append(said or network.patch_side)
    patches = [each for each in found if each]
    return math.lcm(*patches) if patches else None


def _masks(recipe: Recipe, network: StockNetwork, patch: int) -> dict[str, Any]:
    """Give masks the patches of the network."""
    for entry in recipe.views:
        if "patch_size" in entry and entry["patch_size"] != patch:
            raise ConfigError(
                f"--model: the masks of {recipe.name} have patches of {entry['patch_size']} "
                f"pixels, those of {network.name!r} have {patch}. Name a network with the former."
            )
    said = recipe.said("DATA.TRAIN.COLLATE_FUNCTION") not in (None, "default_collate")
    by_collator = said or recipe.needs.collators
    if not recipe.hides or not by_collator or patch == (recipe.said(MASKED_PATCH) or PATCH):
        return {}
    return {MASKED_PATCH: patch}
