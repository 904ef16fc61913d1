"""Write the features of images to a file: a row for each.

    sslengine embed runs/birds ~/photos --out birds.parquet
    sslengine embed runs/birds ~/photos --out birds.csv --network teacher
    sslengine embed timm/vit_small_patch16_dinov3 ~/photos --out photos.parquet
    sslengine embed timm/vit_small_patch16_dinov3 ~/photos --out patches.npz --tokens patches

.parquet (needs pyarrow) has the columns path, features, and label where the images have classes;
.csv the same with a column for each number; .npz the arrays `paths`, `features`, `labels`; .npy
the features alone, in the order of DATA's images. Of images with several classes each class has a
column label_CLASS of 1, 0, or nothing for unknown; .npz has `labels`, images x classes, with -1 for
unknown, and `classes`. An image that cannot be read has no row. The network is that of the run's
newest checkpoint. Images are resized and cropped in the centre, as for an evaluation.

In place of a run, timm/NAME and torchvision/NAME are a library's network with its weights, which
are downloaded once (of timm as .safetensors), or with those of --weights FILE; images are resized
and cropped as its authors do it. --tokens patches, of a vision transformer: .npz and .npy have
features images x patches x width (.npz also `grid`, the rows and columns of patches); tables a row
for each patch, with the columns row and column, from 0 at the top left.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from sslengine.atomic import whole_file
from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.command.data import ALL_OF_IT, look_for_run, split_keys
from sslengine.command.networks import find_stock, make_folder
from sslengine.config.compose import overrides as as_overrides
from sslengine.config.compose import typed
from sslengine.data.manifest.tables import escape_formula
from sslengine.errors import ConfigError, OutputError, is_unicode, listing, readable
from sslengine.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sslengine.python.files import Data


log = logging.getLogger("sslengine")

NAMED = 20  # images that could not be read
TOKENS, PATCHES = ("image", "patches"), "lastPATCH"
ENDINGS = (".parquet", ".csv", ".npz", ".npy")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # of a terminal


class Embedded(NamedTuple):
    """The features of images, with their paths and labels."""

    paths: list[str]
    features: NDArray[Any]  # (images, numbers), float32
    # Names of classes, or numbers; of several classes indicators (images, classes): 1, 0, and -1
    # for unknown.
    labels: list[str] | NDArray[Any] | None
    unreadable: Sequence[str] = ()  # the paths of images without a row
    classes: Sequence[str] = ()  # of the columns of indicators
    # Rows and columns of patches; then features are (images, patches, numbers).
    grid: tuple[int, int] | None = None

    def __repr__(self) -> str:
        labels = "" if self.labels is None else ", with labels"
        shape = " x ".join(map(str, self.features.shape))
        return f"Rows(features {shape}{labels}, {len(self.unreadable)} unreadable)"


ARGUMENTS = (
    replace(args.RUN, help="the folder of a run; timm/NAME, torchvision/NAME"),
    Argument("data", "images, as for `sslengine train`", metavar="DATA"),
    Argument("--out", f"ends in {listing(ENDINGS)}", Path, "FILE", required=True, python=False),
    args.IMAGE_COLUMN,
    args.LABEL_COLUMN,
    Argument("--tokens", "a row for each image, or each patch", choices=TOKENS, default=TOKENS[0]),
    Argument("--weights", "of timm/NAME or torchvision/NAME; default: download", metavar="FILE"),
    args.NETWORK,
    args.DEVICE,
    Argument("--batch-size", kind=int, metavar="N", least=1),
    args.WORKERS,
    replace(args.VALUES, parameter="overrides"),
    args.TRUST_CONFIG,
    replace(args.JSON, help="print what was written, and images without a row, as JSON"),
)


def main(arguments: Sequence[str]) -> int:
    given = args.make_parser(__name__).parse_args(arguments)
    expect_new(given.out)
    with args.keep_apart(given.json):
        asked = {each.name: getattr(given, each.name) for each in ARGUMENTS if each.python}
        rows = embed(**asked)
    write(rows, given.out)
    if given.json:
        count, width = len(rows.paths), rows.features.shape[-1]
        made: dict[str, Any] = {"out": str(given.out), "images": count, "feature_dim": width}
        made |= {"grid": rows.grid} if rows.grid else {}
        made |= {"labels": rows.labels is not None, "classes": rows.classes}
        args.print_document({**made, "unreadable": rows.unreadable})
        return 0
    patches = " for each of {} x {} patches".format(*rows.grid) if rows.grid else " each"
    print(f"{len(rows.paths)} images, {rows.features.shape[-1]} numbers{patches}: {given.out}")
    if rows.unreadable:
        print(f"no row for {len(rows.unreadable)} that could not be read:")
        print("\n".join(f"  {readable(path)}" for path in rows.unreadable[:NAMED]))
    return 0


def embed(
    run: str | Path,
    data: Data,
    *,
    network: str = "auto",
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    image_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    trust_config: bool = False,
    tokens: str = "image",
    weights: str | Path | None = None,
) -> Embedded:
    """Return the features of images, which a run's trunk computes.

    run: also timm/NAME or torchvision/NAME; weights: their file, which is downloaded otherwise.
    data: as for `sslengine.train`.
    overrides: KEY=VALUE, as --set.
    tokens: image, or patches of a vision transformer.
    """
    if weights is None and find_stock(run) is None:
        args.expect_run(Path(run))
    from sslengine.predictor import Predictor
    from sslengine.python.files import open_data

    with TemporaryDirectory(prefix="sslengine-") as other, open_data(data) as files:
        run = make_folder(run, weights, Path(other))
        found = look_for_run(
            run, files.images, split_keys(image_column, label_column), overrides, keys=files.keys,
            label_file=files.labels, all_splits=True,
        )  # fmt: skip
        values = {**ALL_OF_IT, **files.values, **found.keys_over(labels=found.has_classes)}
        if batch_size is not None:
            values["DATA.TRAIN.BATCHSIZE_PER_REPLICA"] = batch_size
        if workers is not None:
            values["DATA.NUM_DATALOADER_WORKERS"] = workers
        predictor = Predictor(
            run, nearest=0, device=device, network=network, trust_config=trust_config,
            overrides=[*as_overrides(values), *typed(overrides)],
        )  # fmt: skip
        layer = _find_layer(tokens, predictor.trunk)
        read = predictor.read_all(layer=layer)
        named = f"{files.each} {{}}".format if files.each else predictor.training_path
        numbers = read.indices.tolist()
        missing = sorted(set(range(len(predictor.dataset))).difference(numbers))
        labels, classes = _name_labels(found, read.targets) if found.has_classes else (None, [])
        features, grid = read.layers["trunk"].numpy(), None
        if layer:  # square patches
            height, width = predictor.view(predictor.training_image(numbers[0])).shape[-2:]
            rows = round((features.shape[1] * height / width) ** 0.5)
            grid = rows, features.shape[1] // rows
        return Embedded(
            [*map(named, numbers)], features, labels, [*map(named, missing)], classes, grid
        )


def _find_layer(tokens: str, trunk: Any) -> str:
    """Return the trunk's name of the feature; "" for the final one."""
    if tokens not in TOKENS:
        raise ConfigError(f"tokens: expected {listing(TOKENS)}; got {tokens!r}.")
    if tokens == TOKENS[0]:
        return ""
    if PATCHES not in trunk.feature_names:
        raise ConfigError("--tokens patches: it is for vision transformers; this network has none.")
    return PATCHES


def _name_labels(found: Any, targets: Any) -> tuple[Any, list[str]]:
    """Return labels as `Rows` has them, and the classes of the columns of indicators."""
    names = [str(name) for name in found.class_names]
    if targets.ndim == 1:
        return [names[each] if names else str(each) for each in targets.tolist()], []
    return targets.numpy(), names or [str(number) for number in range(targets.shape[1])]


# ---- files


def expect_new(out: Path) -> None:
    if out.suffix not in ENDINGS:
        raise OutputError(f"--out {out}: expected a name that ends in {listing(ENDINGS)}.")
    args.expect_writable(out, "--out")
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise OutputError(
            f"--out {out}: to write .parquet install pyarrow: pip install pyarrow. A name that "
            f"ends in .csv requires no other package."
        )


def write(rows: Embedded, out: Path) -> None:
    """Write the rows in the format that the ending names."""
    try:
        with progress(f"writing {out}"), whole_file(out) as file:
            if out.suffix == ".npy":
                np.save(file, rows.features)
            elif out.suffix == ".npz":
                np.savez(file, **_list_arrays(rows))
            elif out.suffix == ".csv":
                file.write(_make_csv(rows).encode(errors="surrogateescape"))
            else:
                _write_parquet(rows, file)
    except OSError as error:  # the disk is full
        raise OutputError(f"--out {out}: cannot be written: {error.strerror or error}.") from error


def _list_arrays(rows: Embedded) -> dict[str, Any]:
    arrays = {"paths": rows.paths, "features": rows.features, "grid": rows.grid}
    arrays |= {"labels": rows.labels, "classes": rows.classes or None}
    return {name: np.array(each) for name, each in arrays.items() if each is not None}


def _list_cells(rows: Embedded) -> dict[str, list[Any]]:
    """Return what a table has next to the numbers, by column, as `judge --features` reads it."""
    cells: dict[str, list[Any]] = {"path": rows.paths}
    if isinstance(rows.labels, list):
        cells["label"] = rows.labels
    elif rows.labels is not None:
        for name, column in zip(rows.classes, rows.labels.T.tolist(), strict=True):
            cells[f"label_{name}"] = [None if each < 0 else each for each in column]
    if rows.grid is None:
        return cells
    places = [*product(*map(range, rows.grid))]
    found = {name: [cell for cell in column for _ in places] for name, column in cells.items()}
    for number, name in enumerate(("row", "column")):
        found[name] = [place[number] for place in places] * len(rows.paths)
    return found


def _make_csv(rows: Embedded) -> str:
    content = io.StringIO()
    writer, cells = csv.writer(content), _list_cells(rows)
    numbers = rows.features.reshape(-1, rows.features.shape[-1])
    writer.writerow([*cells, *(f"feature_{number}" for number in range(numbers.shape[1]))])
    for *named, features in zip(*cells.values(), numbers, strict=True):
        writer.writerow([*map(escape_formula, named), *map(repr, features.tolist())])
    return _CONTROL.sub(lambda found: readable(found[0]), content.getvalue())


def _write_parquet(rows: Embedded, file: BinaryIO) -> None:
    import pyarrow
    from pyarrow import parquet

    path, *others = ((name, pyarrow.array(_unicode(each)))
                     for name, each in _list_cells(rows).items())  # fmt: skip
    flat = pyarrow.array(rows.features.reshape(-1))
    features = pyarrow.FixedSizeListArray.from_arrays(flat, rows.features.shape[-1])
    parquet.write_table(pyarrow.table(dict([path, ("features", features), *others])), file)


def _unicode(names: Sequence[Any]) -> Sequence[Any]:
    """Escape names of files, which may be any bytes: Parquet's texts are UTF-8."""
    odd = [each for each in names if isinstance(each, str) and not is_unicode(each)]
    if not odd:
        return names
    log.warning(
        "%d names are not UTF-8, such as %s: written with \\udc.. for each wrong byte. A name that "
        "ends in .csv or .npz keeps the bytes.", len(odd), readable(odd[0]),
    )  # fmt: skip
    return [each.encode(errors="backslashreplace").decode() for each in names]
