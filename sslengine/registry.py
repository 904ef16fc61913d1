"""Registries map the names in YAML to classes and functions.

There is one `Registry` per kind of component. A name comes from one of four places:

- a decorator that has run: `@register_loss("my_loss")` above a class;
- a module that ships with sslengine and is not imported yet: its package declares
  `LOSSES.declare("pkg.module", "my_loss")`, and the module is imported when the name is first
  used. So listing names imports nothing, and a data worker never imports a loss;
- an entry point of an installed package, in the group `sslengine.methods` or that of another kind,
  which is imported when its name is first used too;
- a dotted path, `my_package.my_module:MyLoss`, accepted instead of any name, except while an
  untrusted folder is open (trust.py).

A component may have a dataclass of its YAML options, `register(..., options=Cls)`. It then gets
one object of this class.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from sslengine.absent import instead_of
from sslengine.errors import ConfigError, SSLEngineError, UnknownNameError, listing, nearest
from sslengine.progress import progress
from sslengine.startup import is_measured
from sslengine.trust import expect_trust, is_closed, is_installed, search_current_folder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_ADDRESS = re.compile(r"[^\s'\"]+://[^\s'\"]+")
# The key of an entry that gives the package of its `name`, if that is not sslengine.
PACKAGE_KEY = "transform_type"


@dataclass(eq=False, repr=False)
class Registry(Generic[T]):
    """Maps names to components of one kind."""

    kind: str
    # A module whose classes with names ending in `suffix` are registered too.
    fallback: str = ""
    suffix: str = ""
    # Keys of a YAML entry that are not arguments of the component.
    entry_keys: tuple[str, ...] = ("name",)
    # Arguments that the engine passes and YAML may not set.
    engine_arguments: tuple[str, ...] = ()
    # The module of the names of entries with this `transform_type`.
    packages: Mapping[str, str] = field(default_factory=dict)
    # The dotted path of the class from which a class of this kind must derive. A kind whose base is
    # sslengine's gets it from the folder that declares its components.
    base: str = ""
    # The engine passes the first argument, under any name.
    takes_first: bool = False
    # A class with `from_config` checks its options itself, and a function may be a component, whose
    # caller passes the arguments that YAML does not set.
    takes_foreign: bool = False
    # Of entry points, by which installed packages declare components of this kind.
    group: str = ""
    _things: dict[str, T] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)
    _options: dict[str, type[Any]] = field(default_factory=dict)
    _declared: dict[str, str] = field(default_factory=dict)

    # ---- filling it

    def register(
        self, name: str, *aliases: str, options: type[Any] | None = None
    ) -> Callable[[T], T]:
        """Return a decorator that registers a class or function under these names."""

        def add(thing: T) -> T:
            for each in (name, *aliases):
                self._add(each, thing, options)
            return thing

        return add

    def _add(self, name: str, thing: T, options: type[Any] | None) -> None:
        module = str(getattr(thing, "__module__", "?"))
        self._expect_free(name, module)
        known = self._things.get(name, thing)
        # A module that is reloaded may register again.
        if getattr(known, "__qualname__", known) != getattr(thing, "__qualname__", thing):
            raise ConfigError(f"{module} registers the {self.kind} name {name!r} twice.")
        self._things[name] = thing
        self._owners[name] = module
        if options is not None:
            self._options[name] = options

    def _expect_free(self, name: str, module: str) -> None:
        taken_by = self._owners.get(name) or self._declared.get(name, module)
        if taken_by != module:
            raise ConfigError(
                f"The {self.kind} name {name!r} is used by {taken_by}; {module} cannot use it "
                f"too. Register your component under another name."
            )

    def adopt(self, module: str, things: Mapping[str, T]) -> None:
        """Register another package's components under names declared for `module`."""
        self._things.update(things)
        self._owners.update(dict.fromkeys(things, module))

    def declare(self, module: str, *names: str, options: type[Any] | None = None) -> None:
        """Declare that importing `module` registers `names`; it is imported on first use."""
        for name in names:
            self._expect_free(name, module)
            self._declared[name] = module
            if options is not None:
                self._options[name] = options

    # ---- asking without an import

    def names(self) -> list[str]:
        """Return all names, also of components that are not imported."""
        return sorted({*self._things, *self._declared, *self.installed()})

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._declared or name in self.installed()

    def installed(self) -> Mapping[str, Sequence[EntryPoint]]:
        """Return by name the components that installed packages declare. None is imported."""
        return _installed(self.group, tuple(sys.path)) if self.group else {}

    def clash(self, name: str) -> str:
        """Say which package declares a name that another component has; "" if none does."""
        module = self.owner(name)
        own = f"{module}.".partition(".")[0]
        found = [
            each for each in self.installed().get(name, ()) if each.module.split(".")[0] != own
        ]
        if not module or not found:
            return ""
        return f"{name!r} is the {self.kind} of {module}. There are also: {_describe(found)}"

    def may_know(self, name: str) -> bool:
        """Return False if `get` cannot find the name."""
        return name in self or ":" in name or bool(self.fallback and name.endswith(self.suffix))

    def open_names(self) -> list[str]:
        """Return the names whose options are known."""
        return sorted({*self._things, *self._options})

    def owner(self, name: str) -> str:
        """Return the module that registers or declares the name; "" if there is none."""
        return self._owners.get(name) or self._declared.get(name, "")

    def is_users(self, name: str) -> bool:
        """Tell whether it is not sslengine's own: those are imported when they are built."""
        return not self.owner(name).startswith("sslengine.")

    def name_in(self, entry: Mapping[str, Any], where: str = "") -> str:
        """Return the full name: `augly.image:Blur` for `{name: Blur, transform_type: augly}`."""
        name, package = str(entry["name"]), entry.get(PACKAGE_KEY)
        if package is None or not self.packages:
            return name
        if package not in self.packages:
            place = f"{where}.{PACKAGE_KEY}" if where else PACKAGE_KEY
            raise UnknownNameError(
                f"{place}: expected one of {listing(self.packages)}, got {package!r}."
            )
        return f"{self.packages[package]}:{name}"

    # ---- the component

    def get(self, name: str, where: str = "") -> T:
        """Return the component `name`. where: its key path, for the error."""
        if ":" in name and name not in self._things:
            known = self._known(name, where) if is_closed() else None
            return import_dotted(name, where) if known is None else known
        if name not in self._things and name in self._declared:
            _import(self._declared[name])
        if name not in self._things and name in self.installed():
            self._load(name, where)
        if name in self._things:
            return self._things[name]
        searched = self.fallback if self.may_know(name) else ""
        found = searched and getattr(_import(searched), name, None)
        if not isinstance(found, type):
            raise self.unknown(name, where)
        return cast(T, found)

    def _fallback_classes(self) -> dict[str, Any]:
        members = vars(_import(self.fallback)) if self.fallback else {}
        return {
            name: member
            for name, member in members.items()
            if isinstance(member, type) and name.endswith(self.suffix)
        }

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
            return cast(T, thing)
        package = module.partition(".")[0]
        if module in self.packages.values() and importlib.util.find_spec(package) is not None:
            thing = vars(_import(module)).get(attribute)
            inside = getattr(thing, "__module__", "").startswith(f"{module}.")
            if isinstance(thing, type) and inside:
                return cast(T, thing)
        expect_trust(_describe_import(path), where, path)
        return None

    def unknown(self, name: str, where: str = "") -> UnknownNameError:
        """Return the error for an unknown name."""
        place = f"{where}: " if where else ""
        if instead := instead_of(self.kind, name):
            return UnknownNameError(f"{place}VISSL's {self.kind} {name!r} is not here: {instead}.")
        # The fallback module is searched last: importing it takes seconds.
        also = f", and the classes of {self.fallback}" if self.fallback else ""
        first = self._fallback_classes() if self.may_know(name) else ()
        hint = nearest(name, [*self.names(), *first]) or nearest(name, self._fallback_classes())
        text = f"{place}there is no {self.kind} named {name!r}. {hint}".rstrip()
        return UnknownNameError(
            f"{text}\n  Known: {listing(self.names())}{also}\n"
            f"  For a custom component: import its module with config.PLUGINS, "
            f"or write 'your_package.module:Name'."
        )

    def unfit(self, name: str, where: str = "") -> str:
        """Return what was expected if a class or function cannot be of this kind, else ""."""
        thing = self.get(name, where)
        if isinstance(thing, type):
            module, _, base = self.base.partition(":")
            if base and not issubclass(thing, getattr(_import(module), base)):
                return f"a class that derives from {base}"
            missing = sorted(getattr(thing, "__abstractmethods__", ()))
            return f"a class that defines {' and '.join(missing)}" if missing else ""
        # A Python function may return a component; a function written in C does not.
        fits = callable(thing) and not isinstance(thing, types.BuiltinFunctionType)
        return "" if fits else "a class or a function"

    def _load(self, name: str, where: str) -> None:
        """Import what an installed package declares; a folder that lies about may declare too."""
        entry, *others = found = self.installed()[name]
        if others:
            raise ConfigError(f"{where}: {name!r} is of several packages: {_describe(found)}")
        if not (entry.dist and is_installed(Path(str(entry.dist.locate_file(""))))):
            expect_trust(_describe_import(entry.value), where, name)
        thing: Any = _import_named(entry.module, where)
        for attribute in entry.attr.split("."):
            thing = _attribute(thing, attribute, where)
        if name not in self._things:  # its module may have registered it
            self._add(name, thing, None)

    # ---- its options, and making it

    def options(self, name: str, where: str = "") -> type[Any] | None:
        """Return the options dataclass of `name`, or None."""
        if name in self._options:
            return self._options[name]
        thing = self.get(name, where)  # a dotted path may lead to what has a name too
        names = (known for known, registered in self._things.items() if registered is thing)
        return self._options.get(next(names, ""))

    def parameters(self, name: str, where: str = "") -> Mapping[str, inspect.Parameter]:
        """Return the arguments of YAML; without a dataclass, also those of the engine."""
        taker: Any = self.options(name, where) or self.get(name, where)
        return inspect.signature(taker).parameters

    def make(self, name: str, arguments: Mapping[str, Any], where: str = "", *given: Any) -> Any:
        """Create the component. arguments: those of the YAML; given: those of the engine."""
        return self.maker(name, arguments, where)(*given)

    def maker(
        self, name: str, arguments: Mapping[str, Any], where: str = "", method: str = ""
    ) -> Callable[..., Any]:
        """Return what the engine calls; it can be pickled. method: one of the class, to call."""
        thing: Any = self.get(name, where)
        thing = getattr(thing, method) if method else thing
        options = self.options(name, where)
        if options is None:
            # Libraries open addresses, and iopath keeps what they give where their path leads.
            for address in _ADDRESS.findall(str(arguments)):
                expect_trust(f"{address!r} may be read from the network", where or name, address)
            return partial(thing, **arguments)
        return partial(_make_with_options, thing, options(**arguments))


def _make_with_options(thing: Any, options: Any, *given: Any) -> Any:
    return thing(*given, options)


def component_key(name: str) -> str:
    """Return the key of a component's options: `pkg.module:MyLoss` -> `MyLoss`."""
    return name.rpartition(":")[2]


def import_dotted(path: str, where: str = "") -> Any:
    """Import the target of `pkg.module:Name`."""
    module, _, attribute = path.partition(":")
    if not module.startswith("sslengine."):  # the engine uses dotted paths too
        expect_trust(_describe_import(path), where, path)
        search_current_folder(path, imported=module in sys.modules)
    return _attribute(_import_named(module, where), attribute, where)


def _attribute(found: Any, attribute: str, where: str) -> Any:
    if not hasattr(found, attribute):
        hint = nearest(attribute, (name for name in vars(found) if not name.startswith("_")))
        text = f"module {found.__name__!r} has no {attribute!r}. {hint}".rstrip()
        raise UnknownNameError(f"{where}: {text}" if where else text)
    return getattr(found, attribute)


@cache
def _installed(group: str, path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    """Return the entry points of a group by name. path: sys.path, where packages are looked for."""
    from importlib.metadata import entry_points  # 50 ms, which --help does not need

    found: dict[str, list[EntryPoint]] = {}
    for each in entry_points(group=group):
        found.setdefault(each.name, []).append(each)
    return found


def _describe(found: Sequence[EntryPoint]) -> str:
    named = (f"{each.value} of {each.dist.name if each.dist else '?'}" for each in found)
    return f"{listing(named)}. Name one by module:Name."


def load_plugins(modules: Iterable[str], where: str = "config.PLUGINS") -> None:
    """Import the user's modules, which register their components."""
    for index, module in enumerate(modules):
        if module not in sys.modules:
            expect_trust(_describe_import(module), f"{where}.{index}", module)
        search_current_folder(module, imported=module in sys.modules)
        _import_named(module, f"{where}.{index}")


def _describe_import(named: str) -> str:
    return f"{named!r} names Python code, which would be imported and run"


def _import(module: str) -> types.ModuleType:
    if "torch" in sys.modules or is_measured() or not module.startswith("sslengine."):
        return importlib.import_module(module)
    with progress("importing torch"):
        return importlib.import_module(module)


def _import_named(module: str, where: str) -> types.ModuleType:
    """Import it; add the key path that names it, and the line, to an error of its code."""
    try:
        return _import(module)
    except SSLEngineError:
        raise
    except (Exception, SystemExit) as error:
        kind = UnknownNameError if isinstance(error, ModuleNotFoundError) else ConfigError
        lines = [f"\n  {each.filename}, line {each.lineno}"
                 for each in traceback.extract_tb(error.__traceback__)
                 if each.filename != __file__ and "importlib" not in each.filename]  # fmt: skip
        text = f"importing {module!r} fails: {type(error).__name__}: {error}{''.join(lines[-1:])}"
        raise kind(f"{where}: {text}" if where else text) from error


TRAIN_STEPS: Registry[Any] = Registry(
    "train step", engine_arguments=("task",), takes_first=True, group="sslengine.steps"
)
TASKS: Registry[Any] = Registry("task")
ENGINES: Registry[Any] = Registry("engine")
LOSSES: Registry[Any] = Registry(
    "loss",
    fallback="torch.nn",
    suffix="Loss",
    engine_arguments=("run", "trunk"),
    base="torch.nn:Module",
    takes_foreign=True,
    group="sslengine.methods",
)
MODELS: Registry[Any] = Registry("model", engine_arguments=("model",), base="torch.nn:Module")
# Methods that were models in earlier versions: the model's name, and the method's.
FROM_MODELS: dict[str, str] = {}
TRUNKS: Registry[Any] = Registry("trunk", group="sslengine.trunks")
HEADS: Registry[Any] = Registry("head", base="torch.nn:Module")
HOOKS: Registry[Any] = Registry("hook", group="sslengine.hooks")
# An adapter wraps a hook of another engine; it returns None for a hook that it does not support.
HOOK_ADAPTERS: Registry[Any] = Registry("hook adapter")
WRITERS: Registry[Any] = Registry("writer", engine_arguments=("run",), takes_first=True)
METERS: Registry[Any] = Registry("meter")
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer", fallback="sslengine.optim.timms", base="torch.optim:Optimizer"
)
SCHEDULERS: Registry[Any] = Registry("scheduler", engine_arguments=("num_epochs",))
PARAM_GROUPS: Registry[Any] = Registry("parameter group constructor")
TRANSFORMS: Registry[Any] = Registry(
    "transform",
    fallback="torchvision.transforms",
    entry_keys=("name", "indices", PACKAGE_KEY),
    packages={"augly": "augly.image"},
    group="sslengine.transforms",
)
COLLATORS: Registry[Any] = Registry("collator", engine_arguments=("batch",), takes_first=True)
DATA_SOURCES: Registry[Any] = Registry("data source", group="sslengine.sources")
LABEL_FREE: Registry[Any] = Registry("label-free metric")
# Protocols that compute features of further images: evaluation.options.ON_IMAGES.
PROTOCOLS: Registry[Any] = Registry("protocol")


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
    # The target is a label of the images.
    labels: bool = False
    # The trunk gets this input in addition to the images: mask or shown.
    trunk_input: str = ""
    # These features of the trunk.
    features: tuple[str, ...] = ()
    # The collator's patches are those of the trunk: the collator's default side, in pixels.
    patch_size: int = 0


def requirements_of(loss: Any) -> Requirements:
    """Return what a loss needs; one that says nothing needs nothing."""
    found = getattr(loss, "requires", None)
    return found if isinstance(found, Requirements) else Requirements()


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
