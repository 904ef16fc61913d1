"""Run a function without torch: for `--show`, most of whose time would be the import of torch.

The file of a component has its options, and imports torch. In a child process the
names of torch, torchvision and timm are enough: classes to derive from, decorators that change
nothing, signatures read from the source. What needs more of them (a value, an attribute of a
class), or would import the user's code, ends the child with no result; the caller then does the
same with torch. So the result is either what torch itself would give, or none.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import inspect
import io
import os
import sys
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from sslengine.config.signature_in_source import arguments_of, folder_of
from sslengine.trust import Opened, closed

PACKAGES = ("torch", "torchvision", "timm")
# torch's classes whose names do not begin with a capital.
_LOWER = ("device", "dtype", "layout", "memory_format")
# Attributes by which the engine asks what a component can do; classes of PACKAGES have none.
_ASKED = ("check", "count_views", "from_config", "infer", "model_gives_losses")


class TorchNeeded(BaseException):
    """No `except Exception` may hide it."""


def without_torch(function: Callable[[], str]) -> str | None:
    """Return its text, or None if that cannot be known without torch, or torch is imported."""
    if "torch" in sys.modules or not hasattr(os, "fork"):
        return None
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _run_and_exit(function, sending)
    os.close(sending)
    with open(receiving, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else None


def _run_and_exit(function: Callable[[], str], sending: int) -> None:
    status = 1
    try:
        # Errors and warnings are the caller's to report, after the same with torch.
        with names_only(), contextlib.redirect_stderr(io.StringIO()) as said:
            text = function()
        if not said.getvalue():
            with open(sending, "w", encoding="utf-8") as pipe:
                pipe.write(text)
            status = 0
    finally:
        os._exit(status)


@contextlib.contextmanager
def names_only() -> Iterator[None]:
    """Imports of PACKAGES give names from now on. The process must not use torch afterwards."""
    for name in [each for each in sys.modules if each.partition(".")[0] in PACKAGES]:
        del sys.modules[name]  # deferred: lean_torchvision.py
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    with closed(Opened("a config that is shown without torch")):
        yield


def has_names_only() -> bool:
    return any(isinstance(each, _Finder) for each in sys.meta_path)


class _Finder:
    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        package = name.partition(".")[0]
        known = package in PACKAGES and folder_of(package) is not None
        return ModuleSpec(name, self, is_package=True) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Name(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Name(types.ModuleType):
    """A module, a function or a value."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        is_constant = name.isupper() and "_" in name
        is_class = name in _LOWER or (name.lstrip("_")[:1].isupper() and not is_constant)
        made: Any = _class(path) if is_class else _Name(path)
        setattr(self, name, made)
        return made

    def __call__(self, *given: Any, **_: Any) -> Any:
        """As a decorator it changes nothing."""
        return given[0] if len(given) == 1 and callable(given[0]) else _Result(self.__name__)

    def __repr__(self) -> str:
        raise TorchNeeded(self.__name__)


class _Result(_Name):
    """What a function has returned."""

    def __bool__(self) -> bool:
        raise TorchNeeded(self.__name__)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Class(ABCMeta):
    """Of the classes of PACKAGES, which have an `of_torch`, and of what derives from them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name in _ASKED or "of_torch" not in vars(cls):
            raise AttributeError(name)
        path = f"{vars(cls)['of_torch']}.{name}"
        if name.startswith("_") or name.isupper():  # a private function, a member of an Enum
            return _Name(path)
        raise TorchNeeded(path)

    def __subclasscheck__(cls, other: type[Any]) -> bool:
        """The bases of torch's own classes are not known: each is taken for any other's subclass,
        as CrossEntropyLoss for a Module."""
        of_torch = all("of_torch" in vars(each) for each in (cls, other))
        return of_torch or super().__subclasscheck__(other)

    @property
    def __signature__(cls) -> inspect.Signature | None:
        owner = vars(next(each for each in cls.__mro__ if "__init__" in vars(each)))
        return _signature(owner["of_torch"]) if "of_torch" in owner else None


def _class(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    inside = {"of_torch": path, "__module__": module, "__init__": _Initialiser(path),
              "__class_getitem__": classmethod(lambda cls, _: cls)}  # fmt: skip
    return _Class(name, (), inside)


class _Initialiser:
    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, thing: Any, kind: type[Any]) -> Any:
        return self if thing is None else lambda *_, **__: None

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        given = _arguments(self._path)
        texts = {
            each.arg: ast.unparse(each.annotation)
            for each in (*given.args, *given.kwonlyargs)
            if each.annotation
        }
        known = {**vars(typing), "Tensor": _class("torch.Tensor"), "ParamsT": Any}
        source = types.SimpleNamespace(__annotations__=texts, __globals__=known)
        try:
            return typing.get_type_hints(source)
        except NameError:
            raise TorchNeeded(self._path) from None


def _signature(path: str) -> inspect.Signature:
    kinds, given = inspect.Parameter, _arguments(path)
    plain = given.args[1:]  # without self
    required = len(plain) - len(given.defaults)
    found = [*zip(plain, [None] * required + given.defaults)]
    only = [*zip(given.kwonlyargs, given.kw_defaults)]
    parameters = [
        kinds(each.arg, kind, default=kinds.empty if default is None else _Name(each.arg))
        for kind, many in ((kinds.POSITIONAL_OR_KEYWORD, found), (kinds.KEYWORD_ONLY, only))
        for each, default in many
    ]
    if given.kwarg:
        parameters.append(kinds(given.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _arguments(path: str) -> Any:
    found = arguments_of(path)
    if found is None or found.vararg or found.posonlyargs:
        raise TorchNeeded(path)
    return found
