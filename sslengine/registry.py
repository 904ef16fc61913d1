"""Registries map the names in YAML to classes and functions.

There is one `Registry` per kind of component. A name comes from one of three places:

- a decorator that has run: `@register_loss("my_loss")` above a class;
- a module that ships with sslengine and is not imported yet: its package declares
  `LOSSES.declare("pkg.module", "my_loss")`, and the module is imported when the name is first
  used. So listing names imports nothing, and a data worker never imports a loss;
- a dotted path, `my_package.my_module:MyLoss`, accepted instead of any name, except while an
  untrusted folder is open (trust.py).

A component may have a dataclass of its YAML options, `register(..., options=Cls)`. It then gets
one object of this class.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

from sslengine.absent import instead_of
from sslengine.errors import ConfigError, SSLEngineError, UnknownNameError, listing, nearest
from sslengine.progress import progress
from sslengine.startup import is_measured
from sslengine.trust import expect_trust, is_closed, search_current_folder

T = TypeVar("T")

# The key of an entry that gives the package of its `name`, if that is not sslengine.
PACKAGE_KEY = "transform_type"


class Registry(Generic[T]):
    """Maps names to components of one kind."""

    def __init__(
        self,
        kind: str,
        fallback: str = "",
        suffix: str = "",
        entry_keys: tuple[str, ...] = ("name",),
        engine_arguments: tuple[str, ...] = (),
        packages: Mapping[str, str] | None = None,
        base: str = "",
        first: str = "",
        takes_foreign: bool = False,
        instead_of_options: str = "",
    ) -> None:
        """
        fallback: a module whose classes with names ending in `suffix` are registered too.
        entry_keys: keys of a YAML entry that are not arguments of the component.
        engine_arguments: arguments that the engine passes and YAML may not set.
        packages: maps `transform_type` of an entry to the module that contains its name.
        base: `module:Class` from which a class of this kind must derive.
        first: what the engine passes as the first argument, which must be taken.
        takes_foreign: a class with `from_config` checks its options itself, and a function may
            be a component, whose caller passes the arguments that YAML does not set.
        instead_of_options: for a kind that has no dataclass of options, what to do.
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
        self.first = first
        self.takes_foreign = takes_foreign
        self._instead_of_options = instead_of_options

    def register(
        self, name: str, *aliases: str, options: type[Any] | None = None
    ) -> Callable[[T], T]:
        """A decorator that registers a class or function under these names."""
        if options is not None and self._instead_of_options:
            raise ConfigError(
                f"The {self.kind} {name!r} is registered with options={options.__name__}, which "
                f"no {self.kind} has: {self._instead_of_options}."
            )

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
                f"The {self.kind} name {name!r} is used by {taken_by}; {owner} cannot use it "
                f"too. Register your component under another name."
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
                raise ConfigError(f"The {self.kind} name {name!r} is used by {taken_by}.")
            self._declared[name] = module
            if options is not None:
                self._options[name] = options

    def is_open(self, name: str) -> bool:
        """Are its options known without an import?"""
        return name in self._things or name in self._options

    def get(self, name: str, where: str = "") -> T:
        """Return the component `name`. where: its key path, for the error."""
        if ":" in name:
            known = self._known(name, where) if is_closed() else None
            return import_dotted(name, where) if known is None else known
        if name not in self._things and name in self._declared:
            _import(self._declared[name])
        if name in self._things:
            return self._things[name]
        searched = self._fallback and name.endswith(self._suffix)
        found = getattr(_import(self._fallback), name, None) if searched else None
        if not isinstance(found, type):
            raise self.unknown(name, where)
        return found  # type: ignore[return-value]

    def is_users(self, name: str) -> bool:
        """Is it not sslengine's own? Those are imported when they are built."""
        return name not in self._declared and not self._owners.get(name, "").startswith(
            "sslengine."
        )

    def unfit(self, name: str, where: str = "") -> str:
        """Return what was expected if a class or function cannot be of this kind, else ""."""
        thing = self.get(name, where)
        if isinstance(thing, type):
            module, _, member = self._base.partition(":")
            base = getattr(_import(module), member) if member else object
            if not issubclass(thing, base):
                return f"a class that derives from {self._base}"
            missing = sorted(getattr(thing, "__abstractmethods__", ()))
            if missing:
                return f"a class that defines {' and '.join(missing)}"
        # A Python function may return a component; a function written in C does not.
        elif not callable(thing) or isinstance(thing, types.BuiltinFunctionType):
            return "a class or a function"
        if self.first and not self.options(name) and not _takes_one(thing):
            return f"what takes {self.first} as the first argument"
        return ""

    def _known(self, path: str, where: str) -> T | None:
        """Return a dotted path's target if it is registered, or in one of the known packages.

        Such a target needs no trust. Otherwise return None if the user typed the path, and raise
        UntrustedError if not.
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

    def _fallback_classes(self) -> dict[str, Any]:
        if not self._fallback:
            return {}
        members = vars(_import(self._fallback))
        return {
            name: member
            for name, member in members.items()
            if isinstance(member, type) and name.endswith(self._suffix)
        }

    def options(self, name: str, where: str = "") -> type[Any] | None:
        """Return the options dataclass of `name`, or None."""
        if name in self._options:
            return self._options[name]
        thing = self.get(name, where)
        # A dotted path to a component that is also registered under a name.
        for known, registered in self._things.items():
            if registered is thing:
                return self._options.get(known)
        return None

    def make(self, name: str, arguments: Mapping[str, Any], where: str = "", *given: Any) -> Any:
        """Create the component. arguments: those of the YAML; given: those of the engine."""
        return self.maker(name, arguments, where)(*given)

    def maker(
        self, name: str, arguments: Mapping[str, Any], where: str = "", method: str = ""
    ) -> Callable[..., Any]:
        """What is called with the engine's arguments; it can be pickled. method: of the class."""
        thing: Any = self.get(name, where)
        thing = getattr(thing, method) if method else thing
        options = self.options(name, where)
        if options is None:
            # Libraries open addresses, and iopath keeps what they give where their path leads.
            for address in _ADDRESS.findall(str(arguments)):
                expect_trust(f"{address!r} may be read from the network", where or name, address)
            return partial(thing, **arguments)
        return partial(_with_options, thing, options(**arguments))

    def parameters(self, name: str, where: str = "") -> Mapping[str, inspect.Parameter]:
        """Return the arguments of YAML; without a dataclass, also those of the engine."""
        taker: Any = self.options(name, where) or self.get(name, where)
        return inspect.signature(taker).parameters

    def name_in(self, entry: Mapping[str, Any], where: str = "") -> str:
        """Return the full name: `augly.image:Blur` for `{name: Blur, transform_type: augly}`."""
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
        """Return all names, also of components that are not imported."""
        return sorted({*self._things, *self._declared})

    def owner(self, name: str) -> str:
        """Return the module that registers or declares the name."""
        return self._owners.get(name) or self._declared[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._declared

    def may_know(self, name: str) -> bool:
        """Return False if `get` cannot find the name; import nothing."""
        return name in self or ":" in name or bool(self._fallback and name.endswith(self._suffix))

    def unknown(self, name: str, where: str = "") -> UnknownNameError:
        """Return the error for an unknown name."""
        place = f"{where}: " if where else ""
        instead = instead_of(self.kind, name)
        if instead:
            return UnknownNameError(f"{place}VISSL's {self.kind} {name!r} is not here: {instead}.")
        fallback = self._fallback_classes() if self.may_know(name) else {}
        # The fallback module is searched last: importing it takes seconds.
        hint = nearest(name, [*self.names(), *fallback]) or nearest(name, self._fallback_classes())
        also = f", and the classes of {self._fallback}" if self._fallback else ""
        text = f"{place}there is no {self.kind} named {name!r}. {hint}"
        return UnknownNameError(
            f"{text.rstrip()}\n  Known: {listing(self.names())}{also}\n"
            f"  For a custom component: import its module with config.PLUGINS, "
            f"or write 'your_package.module:Name'."
        )


def _with_options(thing: Any, options: Any, *given: Any) -> Any:
    return thing(*given, options)


def _same_definition(old: object, new: object) -> bool:
    return getattr(old, "__qualname__", old) == getattr(new, "__qualname__", new)


def component_key(name: str) -> str:
    """Return the key of a component's options: `pkg.module:MyLoss` -> `MyLoss`."""
    return name.rpartition(":")[2]


def _import(module: str) -> types.ModuleType:
    if "torch" in sys.modules or is_measured() or not module.startswith("sslengine."):
        return importlib.import_module(module)
    with progress("importing torch"):
        return importlib.import_module(module)


def _may_be_here(module: str, named: str) -> str:
    """Call it for what the user has typed or trusted; returns where modules are searched."""
    return search_current_folder(named, imported=module in sys.modules)


def _named(path: str) -> str:
    return f"{path!r} names Python code, which would be imported and run"


def import_dotted(path: str, where: str = "") -> Any:
    """Import the target of `pkg.module:Name`."""
    module_name, _, attribute = path.partition(":")
    here = "in the current folder"
    if not module_name.startswith("sslengine."):  # the engine uses dotted paths too
        expect_trust(_named(path), where, path)
        here = _may_be_here(module_name, path)
    place = f"{where}: " if where else ""
    try:
        module = _import(module_name)
    except SSLEngineError:
        raise
    except (Exception, SystemExit) as error:
        if not _is_missing(error, module_name):
            raise ConfigError(f"{place}{_why_not_imported(module_name, error)}") from error
        raise UnknownNameError(
            f"{place}cannot import module {module_name!r} of {path!r}. "
            f"Is it on PYTHONPATH or {here}?"
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
        place = f"{where}.{index}"
        _expect_module_name(module, place)
        if module not in sys.modules:
            expect_trust(_named(module), place, module)
        here = _may_be_here(module, module)
        try:
            _import(module)
        except SSLEngineError:
            raise
        except (Exception, SystemExit) as error:
            why = f"cannot import {module!r}. Is it on PYTHONPATH or {here}?"
            why = f"{why} {_nearest_here(module)}".rstrip()
            if not _is_missing(error, module):
                why = _why_not_imported(module, error)
            raise ConfigError(f"{place}: {why}") from error
        _expect_not_hidden(module, place)


def _expect_module_name(module: str, place: str) -> None:
    if not module.startswith(".") and not module.endswith(".py") and not {*module} & {*"/\\:"}:
        return
    path = PurePath(module.partition(":")[0].removesuffix(".py"))
    name = path.name if path.is_absolute() or ".." in path.parts else ".".join(path.parts)
    raise ConfigError(
        f"{place}: expected the name of a module, got {module!r}. It is the path of its file from "
        f"the current folder, or from a folder on PYTHONPATH, with dots and without .py: "
        f"{name.lstrip('.~')}."
    )


def _nearest_here(module: str) -> str:
    """A module in the current folder, or in the package there, with a similar name."""
    package, dot, _ = module.rpartition(".")
    folder = os.path.abspath(package.replace(".", os.sep))
    return nearest(module, (each.name for each in pkgutil.iter_modules([folder], package + dot)))


def _expect_not_hidden(module: str, place: str) -> None:
    """Raise ConfigError if a file in the current folder has the name of an installed module.

    Not of any other: a job of SLURM imports a copy of the user's modules.
    """
    top = module.partition(".")[0]
    here = [each for each in (Path(top, "__init__.py"), Path(f"{top}.py")) if each.is_file()]
    if is_closed() or not here:  # installed modules come first where a folder is not trusted
        return
    found = Path(getattr(sys.modules[top], "__file__", None) or "")
    installed = top in sys.stdlib_module_names or is_installed(found)
    if installed and found.parent.resolve() != here[0].parent.resolve():
        raise ConfigError(
            f"{place}: {top!r} is the module {found if found.name else 'of that name in Python'}, "
            f"not {here[0].absolute()}, which cannot be imported too. Rename the latter."
        )


def is_installed(file: Path) -> bool:
    """Is it a file of Python's, or of a package that was installed? Others are the user's."""
    packages = {"site-packages", "dist-packages"} & {*file.parts}
    return bool(packages) or file.is_relative_to(sysconfig.get_path("stdlib"))


def users_frames(error: BaseException) -> types.TracebackType | None:
    """Return the part of the error's traceback that begins in the user's code, called by ours."""
    trace, called = error.__traceback__, False
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        ours = file.is_relative_to(Path(__file__).parent)
        if called and not ours and not is_installed(file):
            return trace
        trace, called = trace.tb_next, called or ours
    return None


def _is_missing(error: BaseException, module: str) -> bool:
    """Whether the module does not exist; otherwise the error comes from its code."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name is not None and f"{module}.".startswith(f"{name}.")


def _why_not_imported(module: str, error: BaseException) -> str:
    """Return the text of the module's error, with the last frame outside the import system."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if each.filename not in (__file__, importlib.__file__) and "importlib" not in each.filename
    ]
    at = f"\n  {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    hint = ""
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] == "vissl":
        hint = (
            "\n  sslengine does not need VISSL: import register_loss, register_hook and the others "
            "from sslengine.registry."
        )
    return f"importing {module!r} fails: {type(error).__name__}: {error}{at}{hint}"


def _takes_one(thing: Any) -> bool:
    """Return whether it, or an object of a class of callable ones, takes one argument."""
    if isinstance(thing, type) and "__call__" in dir(thing):
        thing = partial(thing.__call__, None)
    try:
        inspect.signature(thing).bind_partial(None)
    except TypeError:
        return False
    except ValueError:  # its signature cannot be read
        return True
    return True


TRAIN_STEPS: Registry[Any] = Registry("train step", engine_arguments=("task",), first="the task")
_ADDRESS = re.compile(r"[^\s'\"]+://[^\s'\"]+")
_A_SECTION = "declare keys of the config with @section(...) and read(config, ...) them"
TASKS: Registry[Any] = Registry("task", instead_of_options=_A_SECTION)
ENGINES: Registry[Any] = Registry("engine", instead_of_options=_A_SECTION)
LOSSES: Registry[Any] = Registry(
    "loss",
    fallback="torch.nn",
    suffix="Loss",
    engine_arguments=("run",),
    base="torch.nn:Module",
    takes_foreign=True,
)
MODELS: Registry[Any] = Registry("model", engine_arguments=("model",), base="torch.nn:Module")
TRUNKS: Registry[Any] = Registry("trunk", base="sslengine.models.trunks.base:Trunk")
HEADS: Registry[Any] = Registry("head", base="torch.nn:Module")
HOOKS: Registry[Any] = Registry("hook")
# An adapter wraps a hook of another engine; it returns None for a hook that it does not support.
HOOK_ADAPTERS: Registry[Any] = Registry("hook adapter", instead_of_options=_A_SECTION)
WRITERS: Registry[Any] = Registry("writer", engine_arguments=("run",), first="the run's RunPlace")
METERS: Registry[Any] = Registry("meter", base="sslengine.meters.base:Meter")
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer",
    base="torch.optim:Optimizer",
    instead_of_options="its arguments are those of its signature, in OPTIMIZER.args",
)
SCHEDULERS: Registry[Any] = Registry("scheduler", engine_arguments=("num_epochs",))
PARAM_GROUPS: Registry[Any] = Registry("parameter group constructor", instead_of_options=_A_SECTION)
TRANSFORMS: Registry[Any] = Registry(
    "transform",
    fallback="torchvision.transforms",
    entry_keys=("name", "indices", PACKAGE_KEY),
    packages={"augly": "augly.image"},
)
COLLATORS: Registry[Any] = Registry(
    "collator", engine_arguments=("batch",), first="the samples of a batch"
)
DATA_SOURCES: Registry[Any] = Registry("data source", base="sslengine.data.sources.base:DataSource")
AUGMENT_BACKENDS: Registry[Any] = Registry("augmentation back-end", instead_of_options=_A_SECTION)
LABEL_FREE: Registry[Any] = Registry("label-free metric", instead_of_options=_A_SECTION)


@dataclass(frozen=True)
class Requirements:
    """What a loss needs of a run. config/requirements.py checks it, before the launch."""

    # The number of views of an image; 0: any.
    views: int = 0
    # Two views or more.
    several_views: bool = False
    # The option that lists numbers of these views, from 0.
    crops: str = ""
    # One of these collators.
    collators: tuple[str, ...] = ()
    # One of these among the heads.
    heads: tuple[str, ...] = ()
    # The least number of images in a batch, over all ranks.
    images: int = 1
    # The target is the number of the sample, which samples of test phases do not have.
    sample_index: bool = False
    # These among the model's inputs.
    inputs: tuple[str, ...] = ()
    # The model passes this input to its trunk: mask or shown.
    trunk_input: str = ""
    # The collator's patches are those of the trunk: the collator's default side, in pixels.
    patch_size: int = 0


def register_loss(
    name: str, *aliases: str, options: type[Any] | None = None, **needs: Any
) -> Callable[[T], T]:
    """Return a decorator that registers a loss, and what it needs: the fields of Requirements."""
    register = LOSSES.register(name, *aliases, options=options)

    def add(loss: T) -> T:
        if needs:  # a subclass has those of its base unless it states its own
            loss.requires = Requirements(**needs)  # type: ignore[attr-defined]
        register(loss)
        return loss

    return add


register_train_step = TRAIN_STEPS.register
register_task = TASKS.register
register_engine = ENGINES.register
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
