"""Datasets of instance retrieval as VISSL expects them on disk:

roxford5k, rparis6k    gnd_<name>.pkl, jpg/
Oxford, Paris          lab/*_{query,ok,good,junk}.txt, jpg/
copydays               queries/, database/, database_and_distractors/: the number in a file's
                       name, without its last two digits, says which image it shows
instre                 gnd_instre.mat, and the images that it names
any other folder       images, for the whitening
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sslengine.contrib.retrieval.landmarks import LEVELS, Truth
from sslengine.errors import ConfigError, DataError, nearest

REVISITED = ("roxford5k", "rparis6k")
CLASSIC = ("Oxford", "Paris")
KNOWN = (*REVISITED, *CLASSIC, "copydays", "instre")
WHERE = "config.IMG_RETRIEVAL"
COPIES = (
    "original", "strong",
    *(f"jpegqual_{each}" for each in (3, 5, 8, 10, 15, 20, 30, 50, 75)),
    *(f"crops_{each}" for each in (10, 15, 20, 30, 40, 50, 60, 70, 80)),
)  # fmt: skip
# Twenty images of Paris are damaged in the published archive: robots.ox.ac.uk, corrupt.txt.
DAMAGED = {
    f"paris_{name}" for name in (
        "louvre_000136", "louvre_000146", "moulinrouge_000422", "museedorsay_001059",
        "notredame_000188", "pantheon_000284", "pantheon_000960", "pantheon_000974",
        "pompidou_000195", "pompidou_000196", "pompidou_000201", "pompidou_000467",
        "pompidou_000640", "sacrecoeur_000299", "sacrecoeur_000330", "sacrecoeur_000353",
        "triomphe_000662", "triomphe_000833", "triomphe_000863", "triomphe_000867",
    )
}  # fmt: skip
SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Images:
    queries: Sequence[Path]
    database: Sequence[Path]
    truth: Sequence[Truth]
    levels: Sequence[str] = ("easy",)
    boxes: Sequence[Sequence[float]] = ()  # of the queries: left, top, right, bottom
    # Names of kinds of queries, and their numbers; empty: one kind.
    kinds: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def limited(self, queries: int | None, database: int | None) -> Images:
        """The first ones; images that are left out are wanted by no query."""
        some, count = self.queries[:queries], len(self.database[:database])

        def there(truth: Truth) -> Truth:
            return Truth(*([each for each in of if each < count] for of in vars(truth).values()))

        kinds = {name: [n for n in of if n < len(some)] for name, of in self.kinds.items()}
        return Images(
            some, self.database[:database], [there(each) for each in self.truth[: len(some)]],
            self.levels, self.boxes[: len(some)], kinds,
        )  # fmt: skip


def read_images(root: Path, name: str, distractors: bool = False) -> Images:
    folder = _folder(root, name, "EVAL_DATASET_NAME")
    if name in REVISITED:
        return _revisited(folder, name)
    if name == "copydays":
        return _copydays(folder, distractors)
    if name == "instre":
        return _instre(folder)
    if (folder / "lab").is_dir():
        return _classic(folder)
    raise ConfigError(
        f"{WHERE}.EVAL_DATASET_NAME: expected one of {', '.join(KNOWN)}, or a folder with lab/ and "
        f"jpg/ as Oxford has; got {name!r}. {nearest(name, KNOWN)}".rstrip()
    )


def training_images(root: Path, name: str, listed: str = "") -> list[Path]:
    folder = _folder(root, name, "TRAIN_DATASET_NAME")
    if listed:
        lines = Path(listed).read_text().splitlines()
        return [folder / line for line in lines if line]
    if name in REVISITED or (folder / "lab").is_dir() or name in ("copydays", "instre"):
        return list(read_images(root, name).database)
    return images_of(folder)


def _folder(root: Path, name: str, key: str) -> Path:
    if not (root / name).is_dir():
        near = nearest(name, (each.name for each in root.iterdir())) if root.is_dir() else ""
        raise ConfigError(
            f"{WHERE}.{key}: there is no folder {str(root / name)!r}; it is looked up in "
            f"{WHERE}.DATASET_PATH. {near}".rstrip()
        )
    return root / name


def images_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {str(folder)!r}.")
    found = sorted(each for each in folder.iterdir() if each.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{folder}: has no images ({', '.join(SUFFIXES)}).")
    return found


def _revisited(folder: Path, name: str) -> Images:
    held = read_plain_pickle(folder / f"gnd_{name}.pkl")
    queries, database = (
        [folder / "jpg" / f"{each}.jpg" for each in held[key]] for key in ("qimlist", "imlist")
    )
    truth = [Truth(*(list(map(int, of[level])) for level in ("easy", "hard", "junk")))
             for of in held["gnd"]]  # fmt: skip
    return Images(queries, database, truth, LEVELS, [list(of["bbx"]) for of in held["gnd"]])


def _classic(folder: Path) -> Images:
    database = [each for each in images_of(folder / "jpg") if each.stem not in DAMAGED]
    numbers = {each.stem: number for number, each in enumerate(database)}
    queries, truth, boxes = [], [], []
    for path in sorted((folder / "lab").glob("*_query.txt")):
        name, *box = path.read_text().split()
        kinds = {
            kind: [numbers[each] for each in _lines(path, kind) if each in numbers]
            for kind in ("ok", "good", "junk")
        }
        queries.append(folder / "jpg" / f"{name.removeprefix('oxc1_')}.jpg")
        truth.append(Truth(easy=sorted(kinds["good"] + kinds["ok"]), junk=kinds["junk"]))
        boxes.append([float(each) for each in box])
    return Images(queries, database, truth, boxes=boxes)


def _lines(query: Path, kind: str) -> list[str]:
    path = query.with_name(query.name.replace("_query.txt", f"_{kind}.txt"))
    return path.read_text().split()


def _copydays(folder: Path, distractors: bool) -> Images:
    queries = images_of(folder / "queries")
    database = images_of(folder / ("database_and_distractors" if distractors else "database"))
    shown: dict[int, list[int]] = {}
    for number, path in enumerate(database):
        if "distractor" not in path.name:
            shown.setdefault(_shows(path), []).append(number)
    truth = [Truth(easy=shown.get(_shows(path), ())) for path in queries]
    named = {
        kind: [number for number, path in enumerate(queries) if _is_of_kind(path, kind)]
        for kind in COPIES
    }
    return Images(queries, database, truth, kinds={kind: of for kind, of in named.items() if of})


def _is_of_kind(path: Path, kind: str) -> bool:
    return re.search(rf"{kind}(?!\d)", path.name) is not None  # not crops_10 in crops_100


def _shows(path: Path) -> int:
    shown = shown_number(path)
    if shown is None:
        raise DataError(f"{path}: expected a name that ends with the number of the image.")
    return shown


def shown_number(path: Path) -> int | None:
    number = path.name.split(".")[0].split("_")[-1]
    return int(number) // 100 if number.isdigit() else None


def _instre(folder: Path) -> Images:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    held: Any = loadmat(str(folder / "gnd_instre.mat"))
    queries, database = ([folder / str(each[0]) for each in held[key][0]]
                         for key in ("qimlist", "imlist"))  # fmt: skip
    truth = [Truth(easy=[int(one) - 1 for one in each[0].reshape(-1)]) for each in held["gnd"][0]]
    return Images(queries, database, truth)


class _Plain(pickle.Unpickler):
    """Lists, dicts, text, numbers and arrays of numbers; anything else could run code."""

    _known = {
        *((f"{package}.multiarray", name) for package in ("numpy.core", "numpy._core")
          for name in ("_reconstruct", "scalar")),
        ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which needs code to load")


def read_plain_pickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Plain(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    except Exception as error:  # damaged bytes raise anything
        raise DataError(f"{path}: is damaged, or not trusted: {error}.") from error
