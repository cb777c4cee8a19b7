"""Look up Gymnasium environments: ids and makers, their registrations, arguments and wrappers."""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import ale_py  # noqa: F401, its import registers the Atari games
import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from ..utils.errors import CODE_FAULTS, UserError, did_you_mean, import_for, with_place
from .config import EnvConfig, Suite
from .process_state import KeptState
from .suites import validate_suite

_OWN_ARGUMENTS = {
    "render_mode": "Omit it: Reverie renders when it records a video",
    "max_episode_steps": "Set env.time_limit",
}
"""Arguments of `gymnasium.make` that other settings control, with the fix."""

_MAKERS = "python/"
"""Prefix of the ids of classes and functions that were passed to the Python API."""

_GIVE_IT = (
    " It is a class or function of the program that trained the run. Pass it, e.g."
    " reverie.load(run, env=MyEnv) or reverie.train(resume=run, env=MyEnv), or start in the folder that"
    " contains its module."
)

_RUNNING_STATISTICS = (gymnasium.wrappers.NormalizeReward, gymnasium.wrappers.NormalizeObservation)


def find_registration(env_id: str) -> EnvSpec:
    """Import the `module:` of `env_id` (installed or in the current folder), and return its registration."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import_for(f"env.id={env_id}", module)
    elif is_maker(env_id):
        find_maker(env_id)
    return gymnasium.spec(name)


def is_maker(env_id: str) -> bool:
    """Return whether an id refers to a class or function passed to the Python API."""
    return env_id.startswith(_MAKERS)


def register_maker(make: Callable[..., object], env_id: str | None = None) -> str:
    """Register a class or function that creates an environment, and return its id.

    The id defaults to `python/<module>.<name>-v0`, which other processes can import. As in Python, a later
    object with the same name replaces the earlier one. Unnamed objects such as lambdas are numbered.
    """
    env_id = env_id or _id_of(make)
    gymnasium.registry.pop(env_id, None)
    # `make` has no parameters, but Gymnasium's type requires a callable with arguments.
    entry_point: Any = make
    gymnasium.register(env_id, entry_point=entry_point)
    return env_id


def time_limit_of(make: Callable[..., object]) -> int | None:
    """Return the time limit in an existing registration of a class or function, or `None`.

    Registrations without arguments take precedence, because `make` has no arguments. Among these, newer
    versions take precedence.
    """
    found = [
        spec
        for env_id, spec in gymnasium.registry.items()
        if not is_maker(env_id) and _entry_point_of(spec) is make
    ]
    found.sort(key=lambda spec: (bool(spec.kwargs), -(spec.version or 0)))
    return found[0].max_episode_steps if found else None


def _entry_point_of(registered: EnvSpec) -> object:
    """Return the class or function of a registration, or `None` if its module has not been imported."""
    if not isinstance(registered.entry_point, str):
        return registered.entry_point
    module, _, name = registered.entry_point.partition(":")
    return getattr(sys.modules.get(module), name, None)


def _id_of(make: Callable[..., object]) -> str:
    name = getattr(make, "__qualname__", "<lambda>")
    words = f"{_MAKERS}{getattr(make, '__module__', None)}.{re.sub(r'[<>]', '', name)}"
    if name.isidentifier():
        return f"{words}-v0"
    free = (f"{words}{number or ''}-v0" for number in count())
    known = gymnasium.registry
    return next(each for each in free if each not in known or known[each].entry_point is make)


def find_maker(env_id: str) -> str:
    """Import and register the maker with this id, unless it is already registered. Return a hint on failure.

    Ids may be untrusted, so only environment classes and functions from this folder are called.
    """
    module, _, name = env_id.removeprefix(_MAKERS).rpartition("-v")[0].rpartition(".")
    if env_id in gymnasium.registry:
        return ""
    if module in ("", "__main__") or module.startswith("."):
        return _GIVE_IT
    try:
        found: Any = getattr(imported := _import_for(f"env.id={env_id}", module), name, None)
    except UserError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{module}.".startswith(f"{missing.name}."):
            return _GIVE_IT
        raise
    function = found if isinstance(found, FunctionType) and found.__module__ == module else None
    if function and not _is_here(function):
        return f" {module}.{name} is a function outside the current folder.{_GIVE_IT}"
    if function or (isinstance(found, type) and issubclass(found, gymnasium.Env | VectorEnv)):
        register_maker(found, env_id)
        return ""
    return f" {module} has no such class or function.{did_you_mean(name, vars(imported))}{_GIVE_IT}"


def _is_here(function: FunctionType) -> bool:
    """Return whether a function's module is a file or package in the current folder."""
    place, own = Path(function.__module__.replace(".", "/")), function.__code__.co_filename
    files = (place.with_suffix(".py"), place / "__init__.py")
    return any(file.exists() and file.samefile(own) for file in files)


def check_id(env_id: str) -> None:
    """Raise `UserError` if an id's module cannot be imported, or the id is not registered."""
    module, _, name = env_id.rpartition(":")
    if module.startswith(".") or "/" in module:
        raise UserError(
            f"env.id={env_id}: {module} is not a module name. Write, e.g., env.id=package.module:Name-v0."
        )
    if module:
        _import_for(f"env.id={env_id}", module)
    unknown = find_maker(env_id) if is_maker(env_id) else ""
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        if module:
            # Only ids that the same package registers are useful suggestions.
            root = module.partition(".")[0]
            own = [id for id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(root)]
            hint = f"{did_you_mean(name, own)} {module} was imported but does not register this id."
        elif unknown:
            hint = unknown
        else:
            hint = did_you_mean(name, gymnasium.registry)
            hint += " If another package registers it, add its module: env.id=package:Name-v0."
        raise UserError(f"env.id={env_id} is not registered with Gymnasium.{hint}") from error


def wrapper_class(entry: Any) -> tuple[type[gymnasium.Wrapper], dict[str, Any]]:
    """Return the class and the arguments of an entry in `env.wrappers`.

    Raises:
        UserError: If the entry is malformed or does not refer to a subclass of `gymnasium.Wrapper`.
    """
    with_arguments = {"kwargs": {}} | entry if isinstance(entry, dict) else {"name": entry, "kwargs": {}}
    name, kwargs = with_arguments.get("name"), with_arguments.pop("kwargs")
    if with_arguments.keys() != {"name"} or not isinstance(name, str) or not isinstance(kwargs, dict):
        form = "module.Wrapper, or {name: module.Wrapper, kwargs: {size: 8}}"
        raise UserError(f"env.wrappers has the invalid entry {entry}. Write {form}.")
    asked = f"env.wrappers={name}"
    module_name, _, class_name = name.rpartition(".")
    if not module_name or module_name.startswith("."):
        raise UserError(f"{asked} has no module. Write env.wrappers=[module.{class_name}].")
    module = _import_for(asked, module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise UserError(
            f"{asked}: {module_name} has no {class_name}.{did_you_mean(class_name, vars(module))}"
        )
    if not isinstance(found, type) or not issubclass(found, gymnasium.Wrapper):
        repair = f"Define it as class {class_name}(gymnasium.Wrapper)"
        raise UserError(f"{asked}: {class_name} is not a subclass of gymnasium.Wrapper. {repair}.")
    return found, kwargs


def require_no_statistics(env: gymnasium.Env[Any, Any]) -> None:
    """Raise `UserError` for Gymnasium wrappers with running statistics. Checkpoints do not contain these."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, _RUNNING_STATISTICS):
            raise UserError(
                f"has the wrapper {type(env).__name__}. Checkpoints do not store its running statistics, so "
                "resumed runs and evaluations would differ. Omit it: symlog handles numbers of any size."
            )
        env = env.env


def wrapped(env: gymnasium.Env, entry: Any) -> gymnasium.Env:
    """Wrap an environment with an entry of `env.wrappers`."""
    wrapper, kwargs = wrapper_class(entry)
    try:
        return wrapper(env, **copy.deepcopy(kwargs))
    except CODE_FAULTS as error:
        raise UserError(
            f"with env.wrappers={wrapper.__module__}.{wrapper.__name__} fails: {with_place(error)}."
        ) from error


def failure_to_make(registered: EnvSpec, kwargs: Mapping[str, Any], error: BaseException) -> str:
    """Return a message about an error while creating an environment, to be appended to its id."""
    try:
        creator: Any = registered.entry_point
        takes = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator)
    except Exception:
        # Importing the environment's module can raise any exception.
        return f"cannot be created: {with_place(error)}."
    known = {name for name in takes.parameters if name not in (*_OWN_ARGUMENTS, "self")}
    unknown = [name for name in kwargs if name not in known]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in takes.parameters.values())
    if takes_all or not unknown:
        return f"cannot be created: {with_place(error)}."
    listed = f"its arguments are {', '.join(sorted(known))}" if known else "it has no arguments"
    return f"does not accept env.kwargs.{unknown[0]}; {listed}.{did_you_mean(unknown[0], known)}"


def _import_for(asked: str, module: str) -> ModuleType:
    """See `import_for`. Restore process-wide settings that the module changes."""
    with KeptState(module, "when it was imported"):
        return import_for(asked, module)


def validate_env(config: EnvConfig) -> None:
    """Check that the environment exists without starting it.

    Raises:
        UserError: If the game, id or wrapper is unknown. The message gives its key and the closest known
            name.
    """
    if config.suite is Suite.atari and config.game not in atari_games():
        raise UserError(
            f"env.game={config.game} is not one of the {len(atari_games())} Atari games of ale-py."
            f"{did_you_mean(config.game.lower(), atari_games())} Names are in snake_case, e.g. "
            f"env.game=ms_pacman."
        )
    if config.suite is Suite.atari and config.info:
        asked = f"env.info=[{','.join(config.info)}]"
        raise UserError(f"{asked} is not supported by env={config.suite.value}. Omit it.")
    if config.suite in (Suite.gymnasium, Suite.vector):
        check_id(config.id)
        for name in (config.kwargs or {}).keys() & _OWN_ARGUMENTS.keys():
            raise UserError(f"env.kwargs.{name} is set by Reverie. {_OWN_ARGUMENTS[name]}.")
        for entry in config.wrappers:
            wrapper_class(entry)
        return
    if config.kwargs or config.wrappers:
        repair = "Omit them, or play the Gymnasium id with env=gymnasium env.id=ID"
        raise UserError(
            f"env.kwargs and env.wrappers need env=gymnasium, got {config.suite.value}. {repair}."
        )
    if config.suite in (Suite.dmc, Suite.crafter):
        validate_suite(config)


@lru_cache(maxsize=1)
def atari_games() -> list[str]:
    """Return the games that ale-py registers. Its other ROMs, for two players, would kill the process."""
    specs = (spec for env_id, spec in gymnasium.registry.items() if env_id.startswith("ALE/"))
    return sorted({spec.kwargs["game"] for spec in specs})
