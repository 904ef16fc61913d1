"""Registries map the names in YAML to classes and functions.

There is one `Registry` per kind of component. A name comes from one of three places:

- a decorator that has run: `@register_loss("my_loss")` above a class;
- a module that ships with sslengine and is not imported yet: its package declares
  `LOSSES.declare("pkg.module", "my_loss")`, and the module is imported when the name is first
  used. So listing names imports nothing, and a data worker never imports a loss;
- a dotted path, `my_package.my_module:MyLoss`, accepted wherever a name is, except while a
  folder is open that is not trusted (trust.py).

A component may bring a dataclass of its YAML options, `register(..., options=Cls)`, and is then
made with one object of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from sslengine.errors import ConfigError, SSLEngineError, UnknownNameError, listing, nearest
from sslengine.startup import importing
from sslengine.trust import expect_trust, is_closed

T = TypeVar("T")

# The key of an entry that gives the package of its `name`, if that is not sslengine.
PACKAGE_KEY = "transform_type"


class Registry(Generic[T]):
    """Name -> component, for one kind of component."""

    def __init__(
        self,
        kind: str,
        fallback: str = "",
        suffix: str = "",
        entry_keys: tuple[str, ...] = ("name",),
        engine_arguments: tuple[str, ...] = (),
        packages: Mapping[str, str] | None = None,
        base: str = "",
        takes_foreign: bool = False,
    ) -> None:
        """
        fallback: a module whose classes with names ending in `suffix` are known too.
        entry_keys: keys of a YAML entry that are not arguments of the component it names.
        engine_arguments: arguments that the engine passes and YAML may not.
        packages: `transform_type` of an entry -> the module that its name is looked up in.
        base: `module:Class` from which a class of this kind must derive.
        takes_foreign: a class with `from_config` checks its options itself, and a function may
            be a component whose remaining arguments its caller passes.
        """
        self.kind = kind
        self.entry_keys = entry_keys
        self.engine_arguments = engine_arguments
        self._things: dict[str, T] = {}
        self._owners: dict[str, str] = {}
        self._options: dict[str, type[Any]] = {}
        self._declared: dict[str, str] = {}
        self._fallback = fallback
        self._suffix = suffix
        self._packages = packages or {}
        self._base = base
        self.takes_foreign = takes_foreign

    def register(
        self, name: str, *aliases: str, options: type[Any] | None = None
    ) -> Callable[[T], T]:
        """A decorator that registers a class or function under these names."""

        def add(thing: T) -> T:
            for each in (name, *aliases):
                self._add(each, thing, options)
            return thing

        return add

    def _add(self, name: str, thing: T, options: type[Any] | None) -> None:
        owner = str(getattr(thing, "__module__", "?"))
        taken_by = self._owners.get(name) or self._declared.get(name)
        # A reloaded module may register again; another module may not.
        if taken_by is not None and taken_by != owner:
            raise ConfigError(
                f"The {self.kind} name {name!r} is taken by {taken_by}; {owner} cannot have it "
                f"too. Register yours under another name."
            )
        if name in self._things and not _same_definition(self._things[name], thing):
            raise ConfigError(f"{owner} registers the {self.kind} name {name!r} twice.")
        self._things[name] = thing
        self._owners[name] = owner
        if options is not None:
            self._options[name] = options

    def adopt(self, module: str, things: Mapping[str, T]) -> None:
        """Register another package's components under names declared for `module`."""
        self._things.update(things)
        self._owners.update(dict.fromkeys(things, module))

    def declare(self, module: str, *names: str, options: type[Any] | None = None) -> None:
        """Declare that importing `module` registers `names`; it is imported on first use."""
        for name in names:
            taken_by = self._declared.get(name) or self._owners.get(name)
            if taken_by is not None and taken_by != module:
                raise ConfigError(f"The {self.kind} name {name!r} is taken by {taken_by}.")
            self._declared[name] = module
            if options is not None:
                self._options[name] = options

    def is_open(self, name: str) -> bool:
        """Are its options known without an import?"""
        return name in self._things or name in self._options

    def get(self, name: str, where: str = "") -> T:
        """The component called `name`. where: its key path, for the error."""
        if ":" in name:
            own = self._own(name, where) if is_closed() else None
            return import_dotted(name, where) if own is None else own
        if name not in self._things and name in self._declared:
            _import(self._declared[name])
        if name in self._things:
            return self._things[name]
        borrowed = self._borrowed()
        if name not in borrowed:
            raise self.unknown(name, where)
        return borrowed[name]  # type: ignore[no-any-return]

    def unfit(self, name: str, where: str = "") -> str:
        """What is expected, if a dotted path's target cannot be of this kind; else empty."""
        thing = self.get(name, where)
        if isinstance(thing, type):
            module, _, name = self._base.partition(":")
            base = getattr(_import(module), name) if name else object
            return "" if issubclass(thing, base) else f"a class that derives from {self._base}"
        # A Python function may return a component; a function written in C does not.
        plain = callable(thing) and not isinstance(thing, types.BuiltinFunctionType)
        return "" if plain else "a class or a function"

    def _own(self, path: str, where: str) -> T | None:
        """The target of a dotted path that needs no trust: one registered or of a known package.

        None if the user typed the path. Raises UntrustedError otherwise.
        """
        module, _, attribute = path.partition(":")
        if module in self._declared.values():
            _import(module)
        thing = vars(sys.modules.get(module, types)).get(attribute)
        if any(thing is each for each in self._things.values()):
            return thing  # type: ignore[no-any-return]
        package = module.partition(".")[0]
        if module in self._packages.values() and importlib.util.find_spec(package) is not None:
            thing = vars(_import(module)).get(attribute)
            inside = getattr(thing, "__module__", "").startswith(f"{module}.")
            if isinstance(thing, type) and inside:
                return thing  # type: ignore[return-value]
        expect_trust(_named(path), where, path)
        return None

    def _borrowed(self) -> dict[str, Any]:
        """The classes of the fallback module."""
        if not self._fallback:
            return {}
        members = vars(_import(self._fallback))
        return {
            name: member
            for name, member in members.items()
            if isinstance(member, type) and name.endswith(self._suffix)
        }

    def options(self, name: str, where: str = "") -> type[Any] | None:
        """The options dataclass of `name`; None if it has none."""
        if name in self._options:
            return self._options[name]
        thing = self.get(name, where)
        # A dotted path to a component that is also registered under a name.
        for known, registered in self._things.items():
            if registered is thing:
                return self._options.get(known)
        return None

    def make(self, name: str, arguments: Mapping[str, Any], where: str = "", *given: Any) -> Any:
        """One of it: `given` is the engine's; arguments stand in YAML."""
        return self.maker(name, arguments, where)(*given)

    def maker(
        self, name: str, arguments: Mapping[str, Any], where: str = "", method: str = ""
    ) -> Callable[..., Any]:
        """What is called with the engine's arguments; it can be pickled. method: of the class."""
        thing: Any = self.get(name, where)
        thing = getattr(thing, method) if method else thing
        options = self.options(name, where)
        if options is None:
            return partial(thing, **arguments)
        return partial(_with_options, thing, options(**arguments))

    def parameters(self, name: str, where: str = "") -> Mapping[str, inspect.Parameter]:
        """What YAML may give for one of it, and, without a dataclass, the engine."""
        taker: Any = self.options(name, where) or self.get(name, where)
        return inspect.signature(taker).parameters

    def name_in(self, entry: Mapping[str, Any], where: str = "") -> str:
        """The full name: `augly.image:Blur` for `{name: Blur, transform_type: augly}`."""
        name, package = str(entry["name"]), entry.get(PACKAGE_KEY)
        if package is None or not self._packages:
            return name
        place = f"{where}.{PACKAGE_KEY}" if where else PACKAGE_KEY
        if package not in self._packages:
            raise UnknownNameError(
                f"{place}: expected one of {listing(self._packages)}, got {package!r}."
            )
        if importlib.util.find_spec(package) is None:
            raise UnknownNameError(f"{place}: {package} is not installed: pip install {package}")
        return f"{self._packages[package]}:{name}"

    def names(self) -> list[str]:
        """All names, also of components not imported yet."""
        return sorted({*self._things, *self._declared})

    def owner(self, name: str) -> str:
        """The module that registers or declares the name."""
        return self._owners.get(name) or self._declared[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._declared

    def may_know(self, name: str) -> bool:
        """False: `get` cannot find the name. Imports nothing."""
        return name in self or ":" in name or bool(self._fallback and name.endswith(self._suffix))

    def unknown(self, name: str, where: str = "") -> UnknownNameError:
        """The error for an unknown name."""
        place = f"{where}: " if where else ""
        borrowed = self._borrowed() if self.may_know(name) else {}
        # The fallback module is searched last: importing it takes seconds.
        hint = nearest(name, [*self.names(), *borrowed]) or nearest(name, self._borrowed())
        also = f", and the classes of {self._fallback}" if self._fallback else ""
        text = f"{place}there is no {self.kind} named {name!r}. {hint}"
        return UnknownNameError(
            f"{text.rstrip()}\n  Known: {listing(self.names())}{also}\n"
            f"  For your own component: import its module with config.PLUGINS, "
            f"or write 'your_package.module:Name'."
        )


def _with_options(thing: Any, options: Any, *given: Any) -> Any:
    return thing(*given, options)


def _same_definition(old: object, new: object) -> bool:
    return getattr(old, "__qualname__", old) == getattr(new, "__qualname__", new)


def component_key(name: str) -> str:
    """The key of a component's options: `pkg.module:MyLoss` -> `MyLoss`."""
    return name.rpartition(":")[2]


def _import(module: str) -> types.ModuleType:
    with importing():
        return importlib.import_module(module)


def _named(path: str) -> str:
    return f"{path!r} names Python code, which would be imported and run"


def import_dotted(path: str, where: str = "") -> Any:
    """Import the target of `pkg.module:Name`."""
    module_name, _, attribute = path.partition(":")
    if not module_name.startswith("sslengine."):  # the engine's own use
        expect_trust(_named(path), where, path)
    place = f"{where}: " if where else ""
    try:
        module = _import(module_name)
    except SSLEngineError:
        raise
    except Exception as error:
        if not _is_missing(error, module_name):
            raise ConfigError(f"{place}{_why_not_imported(module_name, error)}") from error
        raise UnknownNameError(
            f"{place}cannot import module {module_name!r} of {path!r}. "
            f"Is it on PYTHONPATH or in the current folder?"
        ) from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        hint = nearest(attribute, public)
        raise UnknownNameError(
            f"{place}module {module_name!r} has no {attribute!r}. {hint}".rstrip()
        )
    return getattr(module, attribute)


def load_plugins(modules: Iterable[str], where: str = "config.PLUGINS") -> None:
    """Import the user's modules, which register their components."""
    for index, module in enumerate(modules):
        if module not in sys.modules:
            expect_trust(_named(module), f"{where}.{index}", module)
        try:
            _import(module)
        except SSLEngineError:
            raise
        except Exception as error:
            why = f"cannot import {module!r}. Is it on PYTHONPATH or in the current folder?"
            if not _is_missing(error, module):
                why = _why_not_imported(module, error)
            raise ConfigError(f"{where}.{index}: {why}") from error


def _is_missing(error: Exception, module: str) -> bool:
    """True: the module itself does not exist. False: the error comes from its code."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name is not None and f"{module}.".startswith(f"{name}.")


def _why_not_imported(module: str, error: Exception) -> str:
    """The error of the module itself, and the last frame outside the import system."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if each.filename not in (__file__, importlib.__file__) and "importlib" not in each.filename
    ]
    at = f"\n  {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    hint = ""
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] == "vissl":
        hint = (
            "\n  sslengine does not need VISSL: register_loss, register_hook and the others are in "
            "sslengine.registry."
        )
    return f"importing {module!r} fails: {type(error).__name__}: {error}{at}{hint}"


TRAIN_STEPS: Registry[Any] = Registry("train step", engine_arguments=("task",))
TASKS: Registry[Any] = Registry("task")
ENGINES: Registry[Any] = Registry("engine")
LOSSES: Registry[Any] = Registry(
    "loss",
    fallback="torch.nn",
    suffix="Loss",
    engine_arguments=("run",),
    base="torch.nn:Module",
    takes_foreign=True,
)
MODELS: Registry[Any] = Registry("model", engine_arguments=("model",), base="torch.nn:Module")
TRUNKS: Registry[Any] = Registry("trunk")
HEADS: Registry[Any] = Registry("head", base="torch.nn:Module")
HOOKS: Registry[Any] = Registry("hook")
# Each gets a hook of another engine and wraps it; None: it is not of the engine that it knows.
HOOK_ADAPTERS: Registry[Any] = Registry("hook adapter")
WRITERS: Registry[Any] = Registry("writer", engine_arguments=("run",))
METERS: Registry[Any] = Registry("meter")
OPTIMIZERS: Registry[Any] = Registry("optimizer", base="torch.optim:Optimizer")
SCHEDULERS: Registry[Any] = Registry("scheduler", engine_arguments=("num_epochs",))
PARAM_GROUPS: Registry[Any] = Registry("parameter group constructor")
TRANSFORMS: Registry[Any] = Registry(
    "transform",
    fallback="torchvision.transforms",
    entry_keys=("name", "indices", PACKAGE_KEY),
    packages={"augly": "augly.image"},
)
COLLATORS: Registry[Any] = Registry("collator", engine_arguments=("batch",))
DATA_SOURCES: Registry[Any] = Registry("data source")
AUGMENT_BACKENDS: Registry[Any] = Registry("augmentation back-end")

register_train_step = TRAIN_STEPS.register
register_task = TASKS.register
register_engine = ENGINES.register
register_loss = LOSSES.register
register_model = MODELS.register
register_trunk = TRUNKS.register
register_head = HEADS.register
register_hook = HOOKS.register
register_hook_adapter = HOOK_ADAPTERS.register
register_writer = WRITERS.register
register_meter = METERS.register
register_optimizer = OPTIMIZERS.register
register_scheduler = SCHEDULERS.register
register_param_groups = PARAM_GROUPS.register
register_transform = TRANSFORMS.register
register_collator = COLLATORS.register
register_data_source = DATA_SOURCES.register
register_augment_backend = AUGMENT_BACKENDS.register
