"""The rules of the house, as tests that fail when one is broken."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, fields
from functools import cache
from pathlib import Path

import pytest

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.engine.build import Reduction
from sslengine.engine.parts import RunParts
from sslengine.engine.phases import Progress
from sslengine.engine.state import RunState
from sslengine.registry import PARAM_GROUPS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sslengine"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))

# Ground floor first: a file imports from its own floor or from lower ones.
FLOORS = (
    ("__init__", "absent", "dotted", "errors", "startup", "screen", "screen_console",
     "progress", "trust", "atomic", "signing"),
    ("registry",),
    ("config",),
    ("distributed",),
    ("precision",),
    ("data",),
    ("models",),
    ("optim",),
    ("losses",),
    ("meters",),
    ("evaluate",),
    ("checkpoint",),
    ("monitor",),
    ("hooks",),
    ("methods",),
    ("engine",),
    ("trained",),
    ("engines",),
    ("catalog", "contrib", "export", "launch", "predictor", "report", "testing"),
    ("command", "python", "__main__"),
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}

# Folders declare the names that ship with them before anything else is imported. What the
# floors above may say of them is nothing but that.
CATALOG = "catalog"


def _floor(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def _own_imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    tree = ast.parse(path.read_text())
    if path == PACKAGE / "hooks" / "events.py":  # below `if TYPE_CHECKING`: what a hook gets
        tree.body = [each for each in tree.body if not isinstance(each, ast.If)]
    return ((node, name) for node, name in _imports(tree) if name.split(".")[0] == "sslengine")


def of_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test of all these files, which names each that breaks the rule."""

    def test_of(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert not broken, "\n".join(broken)

        test.__doc__ = rule.__doc__
        return test

    return test_of


@of_each(MODULES)
def test_a_file_imports_from_its_own_floor_or_below(path: Path) -> None:
    own = LEVEL[_floor(path)]
    for node, name in _own_imports(path):
        if path == PACKAGE / "__init__.py" and node.col_offset:
            continue  # below `if TYPE_CHECKING`: what editors see of the names loaded on demand
        parts = name.split(".")
        floor = parts[1] if len(parts) > 1 and parts[1] in LEVEL else "__init__"
        assert LEVEL[floor] <= own, f"{path}:{node.lineno} imports {name} from a higher floor"


@of_each(MODULES)
def test_own_modules_are_imported_at_the_head_of_a_file(path: Path) -> None:
    """Only verbs, and what starts a run, import where they begin to compute: --help and a mistake
    in a config wait for no torch."""
    if _floor(path) in ("command", "launch"):
        return
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node, name in _imports(function):
                assert name.split(".")[0] != "sslengine", f"{path}:{node.lineno} imports {name}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    known = {_module(path) for path in MODULES}
    graph = {
        _module(path): {
            next((m for m in (name, name.rpartition(".")[0]) if m in known), "")
            for _, name in _own_imports(path)
        }
        - {"", _module(path), "sslengine"}
        for path in MODULES
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a circle: {' -> '.join([*above, module])}"
        if module not in done:
            for each in graph.get(module, ()):
                visit(each, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@of_each(MODULES)
def test_torch_distributed_is_called_in_its_own_folder_and_in_contrib_alone(path: Path) -> None:
    if _floor(path) not in ("distributed", "contrib"):
        for node, name in _imports(ast.parse(path.read_text())):
            assert not name.startswith("torch.distributed"), f"{path}:{node.lineno}"
        assert "torch.distributed." not in path.read_text()


@of_each(MODULES)
def test_of_hydra_and_omegaconf_what_is_public_is_imported(path: Path) -> None:
    for node, name in _imports(ast.parse(path.read_text())):
        if name.split(".")[0] in ("hydra", "omegaconf"):
            private = any(each.startswith("_") for each in name.split("."))
            assert not private, f"{path}:{node.lineno} imports {name}"


def test_every_folder_is_a_package() -> None:
    """Or the wheel leaves it out."""
    folders = {path.parent for path in MODULES}
    assert [each for each in folders if not (each / "__init__.py").exists()] == []


@of_each(MODULES)
def test_nobody_writes_to_the_config_but_its_own_folder(path: Path) -> None:
    if _floor(path) == "config":
        return
    text = path.read_text()
    assert "set_readonly" not in text
    assert "OmegaConf.update" not in text
    for node in ast.walk(ast.parse(text)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                written = ast.unparse(target)
                assert not re.match(r"(self\.|task\.|run\.)?config[.\[]", written), written


@of_each(MODULES)
def test_each_field_of_a_run_has_one_writer(path: Path) -> None:
    """`RunState` writes its fields and those of its `Progress`; a run's parts are made once."""
    if path == PACKAGE / "engine" / "state.py":
        return
    own = {each.name for kind in (RunParts, Progress, RunState) for each in fields(kind)}
    owners = ("task", "state", "progress", "parts")
    written = [
        ast.unparse(target)
        for target in _assigned(ast.parse(path.read_text(encoding="utf-8")))
        if target.attr in own and ast.unparse(target.value).split(".")[-1].strip("_") in owners
    ]
    assert written == []


def _assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node


def test_what_a_run_is_made_of_stays() -> None:
    with pytest.raises(FrozenInstanceError):
        Reduction(False, False, False).by_hand = True  # type: ignore[misc]


@cache
def _method_names() -> set[str]:
    names = {path.stem for path in (PACKAGE / "methods").glob("*.py")} - {
        "__init__",
        "base",
        "decoder",
        "foreign",
        "pictures",
        "step",
        "teacher",
        "toolbox",
        "whole",
    }
    declared = re.findall(r'"([a-z_0-9]+_loss)"', (PACKAGE / "methods" / "__init__.py").read_text())
    # Networks and formats of files have that name too.
    return (names | set(declared)) - {"supervised", "dinov2"}


@of_each(MODULES)
def test_no_method_is_named_outside_methods_and_losses(path: Path) -> None:
    """No if over loss names, no table of methods: a new method is one file."""
    if _floor(path) in ("methods", "losses"):
        return
    code = "".join(ast.unparse(node) for node in ast.parse(_without_docstrings(path)).body)
    # VISSL called a way to group parameters after a method; collators and YAML files too.
    allowed = set(PARAM_GROUPS.names()) if _floor(path) == "optim" else set()
    allowed |= {"clip"}  # also what numpy does to values, and optimizers to gradients
    names = "|".join(sorted(_method_names() - allowed))
    assert not re.findall(rf"(?<![\w/])(?:{names})(?!_collator)\b", code)


def _without_docstrings(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                value.value = ""
    return ast.unparse(tree)


@of_each(MODULES)
def test_a_file_tells_its_idea_first_and_is_not_too_long(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert len(text.splitlines()) <= 600


def test_options_can_be_read_without_torch() -> None:
    heavy = {"torch", "torchvision", "timm", "sklearn", "classy_vision", "fvcore"}
    for path in PACKAGE.rglob("options.py"):
        tops = {name.split(".")[0] for _, name in _imports(ast.parse(path.read_text()))}
        assert not tops & heavy, path


def test_every_user_error_says_more_than_a_word() -> None:
    """Nothing a user can get wrong is an assert or a bare KeyError."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                assert name not in ("KeyError", "AssertionError", "Exception"), (
                    f"{path}:{node.lineno}"
                )


def test_pillow_is_told_which_formats_it_may_read() -> None:
    """For some formats that it knows Pillow starts other programs."""
    folders = ("sslengine", "tools", "extra_scripts")
    unguarded = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("Image.open")
        and "formats" not in [each.arg for each in node.keywords]
    ]
    assert unguarded == []


# The glossary: what is said in the field's words instead.
WORDS = {
    r"\banew\b": "again",
    r"\bhangs? on\b": "depends on",
    r"\bin shards\b": "sharded",
    r"\b(go(es|ing)?|went|gone) on\b": "resume, continue",
    r"(?<!\")\bfigures?\b": "metric; a number",
    r"\bnobody\b": "no rank; unknown",
    r"\bdata sets?\b": "dataset",
    r"\banybody": "anyone; untrusted",
    r"\bone's own\b": "custom, your own",
    r"\blets? go\b": "release, free",
    r"\bin mid-": "within, during",
    r"\bin vain\b": "without success, on a timeout",
    r"\bput together\b": "combine, concatenate",
    r"\bas it stands\b": "unchanged",
    r"\b(speaks?|heeds?|hears? (of|from))\b": "prints, handles, gets",
    r"\bbegins? again\b": "restart, from the beginning",
    r"\bleft alone\b": "not changed",
    r"\bwithout a word\b": "silently, without a message",
    r"\bbe had\b|\bwhatever else\b": "available; all other",
    r"\b(is|are|be|being|been|was|were) told\b": "reported, signalled, gets",
    r"\bunder way\b": "current, pending, running",
    r"\bgoes with\b": "belongs to",
    r"\bhas (no|the) say\b": "decides, does not decide",
    r"\bin any case\b": "always",
    r"\bin a circle\b": "form a cycle",
    r"\bnone such\b": "does not have it",
    r"\bwhat it has\b": "name the things: imported modules, names, results",
    r"\blest\b": "so that ... not",
    r"\bput right\b": "correct",
    r"\bcomes? back\b": "return",
    r"\bturned round\b": "inverted",
    r"\bpart ways\b": "differ",
    r"\beverybody": "all; all ranks",
    r"\btalkative\b": "verbose; loggers",
    r"\bwhatever\b": "any",
    r"\bof (its|their) own\b(?! losses)": "its own, separate, new",
    r"\bas they are\b": "unchanged",
    r"\bwhat is left\b": "the rest",
    r"\bstands\b": "is, represents, replaces",
    r"\bbeside (the|a|each|it|that|its|those)\b": "with, in addition to, next to, during",
    r"\btells\b": "reports, says, identifies",
}


@pytest.mark.parametrize("word", WORDS)
def test_words_that_stay_away(word: str) -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *MODULES]
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(word, line, re.IGNORECASE)
    ]
    assert not found, f"say {WORDS[word]} instead:\n" + "\n".join(found)


def test_merges_are_complete() -> None:
    marker = re.compile("^(<{7} |={7}$|>{7} )", re.MULTILINE)
    folders = ("sslengine", "configs", "docs", "tests", "tools")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    texts = [
        path for path in (*files, *ROOT.glob("*.md")) if path.suffix in (".py", ".yaml", ".md")
    ]
    assert not [str(path) for path in texts if marker.search(path.read_text(encoding="utf-8"))]
