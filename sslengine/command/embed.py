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

import argparse
import csv
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from sslengine.atomic import whole_file
from sslengine.command import columns, documents
from sslengine.command.arguments import (
    DEVICE,
    IMAGE_COLUMN,
    JSON,
    LABEL_COLUMN,
    NETWORK,
    RUN,
    TRUST_CONFIG,
    VALUES,
    WORKERS,
    Argument,
    build_parser,
    expect_run,
    expect_writable,
)
from sslengine.command.networks import find_stock, make_folder
from sslengine.config.compose import overrides as as_overrides
from sslengine.config.compose import typed
from sslengine.errors import ConfigError, OutputError, is_unicode, listing, readable
from sslengine.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sslengine.command.in_memory import Data


log = logging.getLogger("sslengine")

NAMED = 20  # images that could not be read
TOKENS, PATCHES = ("image", "patches"), "lastPATCH"
ENDINGS = (".parquet", ".csv", ".npz", ".npy")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # of a terminal


class Rows(NamedTuple):
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
    replace(RUN, help="the folder of a run; timm/NAME, torchvision/NAME"),
    Argument("data", "images, as for `sslengine train`", metavar="DATA"),
    Argument("--out", f"ends in {listing(ENDINGS)}", Path, "FILE", required=True, python=False),
    IMAGE_COLUMN,
    LABEL_COLUMN,
    Argument("--tokens", "a row for each image, or each patch", choices=TOKENS, default=TOKENS[0]),
    Argument("--weights", "of timm/NAME or torchvision/NAME; default: download", metavar="FILE"),
    NETWORK,
    DEVICE,
    Argument("--batch-size", kind=int, metavar="N", least=1),
    WORKERS,
    replace(VALUES, parameter="overrides"),
    TRUST_CONFIG,
    replace(JSON, help="print what was written, and images without a row, as JSON"),
)


def make_parser() -> argparse.ArgumentParser:
    return build_parser("embed", __doc__, ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    expect_new(given.out)
    with documents.apart(given.json):
        asked = {each.name: getattr(given, each.name) for each in ARGUMENTS if each.python}
        rows = embed(**asked)
    write(rows, given.out)
    if given.json:
        count, width = len(rows.paths), rows.features.shape[-1]
        made: dict[str, Any] = {"out": str(given.out), "images": count, "feature_dim": width}
        made |= {"grid": rows.grid} if rows.grid else {}
        made |= {"labels": rows.labels is not None, "classes": rows.classes}
        documents.show({**made, "unreadable": rows.unreadable})
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
) -> Rows:
    """The features of images, which a run's trunk computes.

    run: also timm/NAME or torchvision/NAME; weights: their file, which is downloaded otherwise.
    data: as for `sslengine.train`.
    overrides: KEY=VALUE, as --set.
    tokens: image, or patches of a vision transformer.
    """
    if weights is None and find_stock(run) is None:
        expect_run(Path(run))
    from sslengine.command.data import look
    from sslengine.command.in_memory import open_data
    from sslengine.predictor import Predictor

    with TemporaryDirectory(prefix="sslengine-") as other, open_data(data) as files:
        run = make_folder(run, weights, Path(other))
        asked = columns.split_keys(image_column, label_column)
        own = {**files.keys, **columns.typed_keys(overrides), **asked}
        said = columns.run_keys(run, files.images, own)
        found = look(files.images, said.get, files.labels, all_splits=True)
        check_columns(found, asked, said)
        values = {**ALL_OF_IT, **files.values, **found.keys_over(labels=found.has_classes)}
        if batch_size is not None:
            values["DATA.TRAIN.BATCHSIZE_PER_REPLICA"] = batch_size
        if workers is not None:
            values["DATA.NUM_DATALOADER_WORKERS"] = workers
        predictor = Predictor(
            run, nearest=0, device=device, network=network, trust_config=trust_config,
            overrides=[*as_overrides(values), *typed(overrides)],
        )  # fmt: skip
        named = f"{files.each} {{}}".format if files.each else predictor.training_path
        layer = _layer(tokens, predictor.trunk)
        rows = _rows(found, len(predictor.dataset), named, read := predictor.read_all(layer=layer))
        if not layer:
            return rows
        image = predictor.view(predictor.training_image(int(read.indices[0])))
        return rows._replace(grid=_grid(rows.features.shape[1], *image.shape[-2:]))


def _layer(tokens: str, trunk: Any) -> str:
    """Return the trunk's name of the feature; "" for the final one."""
    if tokens not in TOKENS:
        raise ConfigError(f"tokens: expected {listing(TOKENS)}; got {tokens!r}.")
    if tokens == TOKENS[0]:
        return ""
    if PATCHES not in trunk.feature_names:
        raise ConfigError("--tokens patches: it is for vision transformers; this network has none.")
    return PATCHES


def _grid(patches: int, height: int, width: int) -> tuple[int, int]:
    """Count the rows and columns of square patches."""
    rows = round((patches * height / width) ** 0.5)
    return rows, patches // rows


def check_columns(found: Any, given: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a column has no effect; warn if no labels were found.

    given: by options. said: also by the run, or --set.
    """
    columns.expect_effect(given, {found.place: found.name})
    if not found.source.num_classes and (note := columns.suggest_labels(found.place, said)):
        log.warning("%s", note)


def _rows(found: Any, count: int, named: Callable[[int], str], read: Any) -> Rows:
    """count: of images. named: what an image is called, by its number."""
    numbers = read.indices.tolist()
    paths = [named(number) for number in numbers]
    missing = sorted(set(range(count)).difference(numbers))
    unreadable = [named(number) for number in missing]
    labels, classes = _labels(found, read.targets) if found.has_classes else (None, [])
    return Rows(paths, read.layers["trunk"].numpy(), labels, unreadable, classes)


def _labels(found: Any, targets: Any) -> tuple[Any, list[str]]:
    """Return labels as `Rows` has them, and the classes of the columns of indicators."""
    names = [str(name) for name in found.class_names]
    if targets.ndim == 1:
        return [names[each] if names else str(each) for each in targets.tolist()], []
    return targets.numpy(), names or [str(number) for number in range(targets.shape[1])]


# Keys by which a run may select some of its images.
ALL_OF_IT = {
    "DATA.TRAIN.DATA_LIMIT": -1, "DATA.TRAIN.DATASET_NAMES": [], "DATA.TRAIN.LABEL_PATHS": [],
    "DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE": 0.0, "DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST": "",
    "DATA.HOLD_OUT.SHARE": 0.0, "DATA.HOLD_OUT.SEED": 0, "DATA.HOLD_OUT.STRATIFIED": False,
    "DATA.HOLD_OUT.GROUP_COLUMN": "",
}  # fmt: skip


def expect_new(out: Path) -> None:
    if out.suffix not in ENDINGS:
        raise OutputError(f"--out {out}: expected a name that ends in {listing(ENDINGS)}.")
    expect_writable(out, "--out")
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise OutputError(
            f"--out {out}: to write .parquet install pyarrow: pip install pyarrow. A name that "
            f"ends in .csv requires no other package."
        )


def write(rows: Rows, out: Path) -> None:
    try:
        with progress(f"writing {out}"), whole_file(out) as file:
            WRITERS[out.suffix](rows, file)
    except OSError as error:  # the disk is full
        raise OutputError(f"--out {out}: cannot be written: {error.strerror or error}.") from error


def _parquet(rows: Rows, file: BinaryIO) -> None:
    import pyarrow
    from pyarrow import parquet

    width = rows.features.shape[-1]
    flat = pyarrow.array(rows.features.reshape(-1))
    path, *others = ((name, pyarrow.array(_unicode(each))) for name, each in _cells(rows).items())
    features = ("features", pyarrow.FixedSizeListArray.from_arrays(flat, width))
    parquet.write_table(pyarrow.table(dict([path, features, *others])), file)


def _cells(rows: Rows) -> dict[str, list[Any]]:
    """Return what a table has next to the numbers, by column."""
    cells = {"path": rows.paths, **_label_columns(rows)}
    if rows.grid is None:
        return cells
    places = list(product(*map(range, rows.grid)))
    each = {name: [cell for cell in column for _ in places] for name, column in cells.items()}
    for number, name in enumerate(("row", "column")):
        each[name] = [place[number] for place in places] * len(rows.paths)
    return each


def _unicode(names: Sequence[Any]) -> Sequence[Any]:
    """Parquet's texts are UTF-8, and a name of a file may be any bytes."""
    odd = [each for each in names if isinstance(each, str) and not is_unicode(each)]
    if not odd:
        return names
    log.warning(
        "%d names are not UTF-8, such as %s: written with \\udc.. for each wrong byte. A name that "
        "ends in .csv or .npz keeps the bytes.", len(odd), readable(odd[0]),
    )  # fmt: skip
    return [each.encode(errors="backslashreplace").decode() for each in names]


def _label_columns(rows: Rows) -> dict[str, list[Any]]:
    """Return the columns of labels of a table, as `judge --features` reads them."""
    if rows.labels is None or isinstance(rows.labels, list):
        return {} if rows.labels is None else {"label": rows.labels}
    return {f"label_{name}": [None if each < 0 else each for each in column]
            for name, column in zip(rows.classes, rows.labels.T.tolist(), strict=True)}  # fmt: skip


def _csv(rows: Rows, file: BinaryIO) -> None:
    from sslengine.data.manifest.tables import escape_formula

    content = io.StringIO()
    writer = csv.writer(content)
    cells = _cells(rows)
    numbers = rows.features.reshape(-1, rows.features.shape[-1])
    writer.writerow([*cells, *(f"feature_{number}" for number in range(numbers.shape[1]))])
    for *named, features in zip(*cells.values(), numbers, strict=True):
        writer.writerow([*map(escape_formula, named), *map(repr, features.tolist())])
    text = _CONTROL.sub(lambda found: readable(found[0]), content.getvalue())
    file.write(text.encode(errors="surrogateescape"))


def _npz(rows: Rows, file: BinaryIO) -> None:
    import numpy as np

    arrays: dict[str, Any] = {"paths": np.array(rows.paths), "features": rows.features}
    if rows.grid:
        arrays["grid"] = np.array(rows.grid)
    if rows.labels is not None:
        arrays["labels"] = np.array(rows.labels)
    if rows.classes:
        arrays["classes"] = np.array(rows.classes)
    np.savez(file, **arrays)


def _npy(rows: Rows, file: BinaryIO) -> None:
    import numpy as np

    np.save(file, rows.features)


WRITERS = dict(zip(ENDINGS, (_parquet, _csv, _npz, _npy), strict=True))
