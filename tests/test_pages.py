"""What README and docs/ name exists: links, files, tests, configs, keys. And numbers of README that
come from docs/methods.json are those."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from statistics import mean

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

import sslengine
from sslengine import catalog, registry
from sslengine.absent import DEAD_KEYS
from sslengine.command.completion import words
from sslengine.command.front import VERBS
from sslengine.config.sections import schema
from sslengine.launch.cli import main
from sslengine.registry import Registry
from tests.test_policies import LEVEL

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs/judging").glob("*.md"))]  # fmt: skip
# Names in capitals that are no keys: variables of the environment, values.
NO_KEYS = {
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NUMBA_CACHE_DIR", "OMP_NUM_THREADS", "WORLD_SIZE",
}  # fmt: skip
# Keys of the components that the pages write themselves.
THEIR_OWN = (
    "MODEL.TRUNK.PLAIN", "LOSS.whiten_loss", "TRAINER.symmetric_train_step",
    "DATA.TRAIN.TILE_SIDE",
)  # fmt: skip

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@page
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        file, _, anchor = link.partition("#")
        if not file.startswith("http"):
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target.read_text()), link


@page
def test_files_and_configs_exist(page: Path) -> None:
    text = page.read_text()
    own = set(re.findall(r"`(configs/[\w/.]+)`", text))
    inside = (
        r"(?<![\w/.~{-])(?:tests|tools|extra_scripts|sslengine|constraints|docs)/[\w./+-]*[\w/]"
    )
    for name in re.findall(inside, text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"(?<![\w+-])config=((?:quickstart|pretrain)/[\w/+]*\w)", text):
        assert (ROOT / "configs" / f"{name}.yaml").exists(), name
    for overlay in re.findall(r"\+config/(\w+=\w+)", text):
        name = f"configs/{overlay.replace('=', '/')}.yaml"
        assert (ROOT / name).exists() or name in own, overlay


# Where the flags of tools/run_distributed_engines.py and others are declared.
SCRIPTS = [*ROOT.glob("tools/**/*.py"), *ROOT.glob("extra_scripts/*.py")]
DECLARED = [*ROOT.glob("sslengine/launch/*.py"), *ROOT.glob("sslengine/command/*.py")]


@page
def test_flags_of_commands_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    command = r"(?<![\w/])((?:tools|extra_scripts)/[\w/]+\.py|bench_\w+\.py)\b([^`\n|]*)"
    for script, arguments in re.findall(command, text):
        (file,) = [each for each in SCRIPTS if each.name == Path(script).name]
        sources = [*file.parent.glob(f"{file.stem}*.py"), *DECLARED]
        declared = "".join(each.read_text() for each in sources)
        for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", arguments):
            assert f'"{flag}"' in declared, f"{script} {flag}"


@page
def test_verbs_and_their_flags_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    command = r"(?:`|^    )sslengine ([a-z]+)(?![a-z]*[=.])([^`\n#]*)"
    for verb, arguments in re.findall(command, text, re.MULTILINE):
        if verb == "job":
            continue  # the name of a job that submits itself
        assert verb in VERBS, verb
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", arguments)) <= set(words(verb)), arguments


def test_the_tables_of_data_md_have_every_transform_and_collator() -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    for title, known in (("Transforms", registry.TRANSFORMS), ("Collators", registry.COLLATORS)):
        (rows,) = re.findall(rf"^## {title}\n.*?^((?:\|[^\n]*\n)+)", text, re.MULTILINE | re.DOTALL)
        told = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows.splitlines()))
        assert set(told) == {each for each in known._declared if not each.startswith("video_")}


@cache
def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == sslengine.__version__


def _tests() -> str:
    return "\n".join(f"{path.name}\n{path.read_text()}" for path in ROOT.glob("tests/**/*.py"))


@page
def test_tests_exist(page: Path) -> None:
    for name in re.findall(r"`(?:[\w/.]+::)?(test_\w+(?:\.py)?)`", page.read_text()):
        sought = name if name.endswith(".py") else f"def {name}("
        assert sought in _tests(), name


def _keys(node: DictConfig, path: str = "") -> Iterator[str]:
    for name in node:
        key = f"{path}.{name!s}".lstrip(".")
        yield key
        value = node._get_node(name)
        if isinstance(value, DictConfig) and not value._is_none():
            yield from _keys(value, key)


@cache
def _known() -> tuple[set[str], set[str]]:
    """The keys of the schema; and the names of what components take."""
    assert catalog  # importing it declares all names
    arguments: set[str] = set()
    for each in vars(registry).values():
        for name in each.names() if isinstance(each, Registry) else ():
            options = each.options(name)
            arguments.update(field.name for field in dataclasses.fields(options or _Nothing))
    return set(_keys(schema())), arguments


@dataclasses.dataclass
class _Nothing: ...


@page
def test_keys_exist(page: Path) -> None:
    keys, arguments = _known()
    text = page.read_text()
    written = r"\bconfig\.([A-Z]\w*(?:\.\w+)*)", r"`([A-Z][A-Z_]+(?:\.\w+)*_?\w*)\b[^`]*`"
    for key in {each for form in written for each in re.findall(form, text)}:
        *parts, last = key.split(".")
        if not parts and ("_" not in last or last in NO_KEYS):
            continue  # a word in capitals
        short = re.sub(r"\.\d+\..*", "", key)  # what stands in an entry of a list
        there = any(f".{each}".endswith(f".{short}") for each in keys)
        dead = any(fnmatchcase(each, key) or each.endswith(f".{key}") for each in DEAD_KEYS)
        component = last in arguments and any(each == ".".join(parts) for each in keys)
        own = key.startswith(THEIR_OWN) or _below_a_component(key)
        assert there or dead or component or own or last in arguments, key


def _below_a_component(key: str) -> bool:
    """`LOSS.simclr_info_nce_loss.temperature`, `TRAINER.gradcache_train_step.CHUNK_SIZE`."""
    first, _, rest = key.partition(".")
    kinds = {"LOSS": registry.LOSSES, "TRAINER": registry.TRAIN_STEPS}
    name = rest.partition(".")[0]
    return first in kinds and name in kinds[first]


def test_what_the_readme_says_to_say_is_taken() -> None:
    """Each row of "you want to, you say" on top of the quickstart."""
    text = (ROOT / "docs" / "options.md").read_text()
    rows = re.findall(r"^\| [a-z][^|\n]* \| (.*`\+?config[./].*) \|$", text, re.MULTILINE)
    assert len(rows) >= 12
    for row in rows:
        (said, *_) = re.findall(r"`(\+?config[./][^`]*)`", row)
        said = re.sub(r"\[my_package[^]]*\]", "[]", said)
        assert main(["config=quickstart/simclr", *said.split(), "--show"]) == 0, row


def test_the_tree_has_every_floor_in_its_order() -> None:
    (tree,) = re.findall(
        r"^    sslengine/\n((?:      .*\n)+)", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in tree.splitlines()]
    names = [re.sub(r"\.py|/", "", name) for line in lines for name in line.split(", ")]
    assert sorted(names) == sorted(set(LEVEL) - {"__init__", "__main__", "catalog"})
    assert [LEVEL[name] for name in names] == sorted(LEVEL[name] for name in names)


def test_the_quickstarts_table_is_of_the_measured_runs() -> None:
    scores = json.loads((ROOT / "docs" / "methods.json").read_text())["simclr"]["scores"]

    def told(name: str) -> str:
        values = [each[name] for each in scores.values()]
        return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    text = (ROOT / "README.md").read_text()
    assert f"| trained trunk | {told('knn')} | {told('linear')} |" in text
    untrained = f"{told('untrained_knn')} | {told('untrained_linear')}"
    assert f"| same trunk, untrained | {untrained} |" in text


@page
def test_defaults_in_tables_are_those_of_the_schema(page: Path) -> None:
    table = r"^\| (?:key of )?`config\.([\w.]+)` \| default \| \|\n\|[-|]+\n((?:\|.*\n)+)"
    for section, rows in re.findall(table, page.read_text(), re.MULTILINE):
        for row in rows.splitlines():
            names, told = (cell.strip() for cell in row.split("|")[1:3])
            keys = re.findall(r"[\w.]+", names)
            values = re.split(r",\s*", told) if len(keys) > 1 else [told]
            for key, value in zip(keys, values, strict=True):
                expected = "" if value in ("", "none") else yaml.safe_load(value.strip("`"))
                assert _default(section, key) == expected, f"{section}.{key}"


def _default(section: str, key: str) -> object:
    kind, _, name = section.partition(".")
    options = registry.TRAIN_STEPS.options(name) if kind == "TRAINER" and name else None
    return getattr(options(), key) if options else OmegaConf.select(schema()[section], key)
