"""Gymnasium environments by name: the registration of an id or a maker, its arguments and wrappers."""

import copy
import importlib
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

from ..utils.errors import UserError, did_you_mean, with_place
from .config import EnvConfig, Suite
from .process_state import KeptState

_OWN_ARGUMENTS = {
    "render_mode": "Reverie renders where a video is due; leave it out",
    "max_episode_steps": "Set env.time_limit",
}
"""Arguments of `gymnasium.make` that another setting decides, with the repair."""

_MAKERS = "python/"
"""Begins the ids of classes and functions that a program gave."""

CODE_FAULTS = (Exception, SystemExit)
"""What code that is not ours may raise without meaning to end this process."""

_GIVE_IT = (
    " It is a class or function of the program that trained with it. Give it, as in"
    " reverie.load(run, env=MyEnv) or reverie.train(resume=run, env=MyEnv), or start in the folder of its"
    " module."
)

_RUNNING_STATISTICS = (gymnasium.wrappers.NormalizeReward, gymnasium.wrappers.NormalizeObservation)


def find_registration(env_id: str) -> EnvSpec:
    """Return the registration of `env_id`, after importing its `module:` if it has one.

    A module may be in the current folder; installed ones of the same name come first.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module)
    elif is_maker(env_id):
        find_maker(env_id)
    return gymnasium.spec(name)


def is_maker(env_id: str) -> bool:
    """Return whether an id is of a class or a function that a program gave."""
    return env_id.startswith(_MAKERS)


def register_maker(make: Callable[[], object], env_id: str | None = None) -> str:
    """Register a class or a function that makes an environment, by an id or its own one, which is returned.

    Its own is `python/<module>.<name>-v0`, by which another process imports it. Of two of one name in a
    module the later counts, as in Python; what has no name there, such as a lambda, has a number, too.
    """
    env_id = env_id or _id_of(make)
    gymnasium.registry.pop(env_id, None)
    entry_point: Any = make  # a maker that takes no arguments, as a registration does not ask for any
    gymnasium.register(env_id, entry_point=entry_point)
    return env_id


def time_limit_of(make: Callable[[], object]) -> int | None:
    """Return the time limit with which a class or function is registered by its author, None without one.

    Of several registrations counts one without arguments, as `make` is called, and of these the newest.
    """
    found = [
        spec
        for env_id, spec in gymnasium.registry.items()
        if not is_maker(env_id) and _entry_point_of(spec) is make
    ]
    found.sort(key=lambda spec: (bool(spec.kwargs), -(spec.version or 0)))
    return found[0].max_episode_steps if found else None


def _entry_point_of(registered: EnvSpec) -> object:
    """Return the class or function of a registration, None for one whose module is not imported."""
    if not isinstance(registered.entry_point, str):
        return registered.entry_point
    module, _, name = registered.entry_point.partition(":")
    return getattr(sys.modules.get(module), name, None)


def _id_of(make: Callable[[], object]) -> str:
    name = getattr(make, "__qualname__", "<lambda>")
    words = f"{_MAKERS}{getattr(make, '__module__', None)}.{re.sub(r'[<>]', '', name)}"
    if name.isidentifier():
        return f"{words}-v0"
    free = (f"{words}{number or ''}-v0" for number in count())
    known = gymnasium.registry
    return next(each for each in free if each not in known or known[each].entry_point is make)


def find_maker(env_id: str) -> str:
    """Register what an id of a maker names, if this process does not know it; return a hint if that fails.

    It may stand in a file of a stranger, so only what makes environments is called: a class of them, or a
    function of a module in the current folder.
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
        return f" {module}.{name} is a function outside of the current folder.{_GIVE_IT}"
    if function or (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        register_maker(found, env_id)
        return ""
    return f" {module} has no such class or function.{did_you_mean(name, vars(imported))}{_GIVE_IT}"


def _is_here(function: FunctionType) -> bool:
    """Return whether the module of a function is a file or package of the current folder."""
    place, own = Path(function.__module__.replace(".", "/")), function.__code__.co_filename
    files = (place.with_suffix(".py"), place / "__init__.py")
    return any(file.exists() and file.samefile(own) for file in files)


def check_id(env_id: str) -> None:
    """Refuse an id whose module cannot be imported, or that nothing has registered."""
    module, _, name = env_id.rpartition(":")
    if module.startswith(".") or "/" in module:
        raise UserError(
            f"env.id={env_id}: {module} is no name of a module, as in env.id=package.module:Name-v0."
        )
    if module:
        _import_for(f"env.id={env_id}", module)
    unknown = find_maker(env_id) if is_maker(env_id) else ""
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        if module:  # what other modules have registered is of no help
            root = module.partition(".")[0]
            own = [id for id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(root)]
            hint = f"{did_you_mean(name, own)} {module} was imported, and registers no such id."
        elif unknown:
            hint = unknown
        else:
            hint = did_you_mean(name, gymnasium.registry)
            hint += " An id of another package needs its module in front, as in env.id=package:Name-v0."
        raise UserError(f"env.id={env_id} is not registered with Gymnasium.{hint}") from error


def check_arguments(kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that are not the user's to give."""
    for name in kwargs.keys() & _OWN_ARGUMENTS.keys():
        raise UserError(f"env.kwargs.{name} is decided by Reverie. {_OWN_ARGUMENTS[name]}.")


def wrapper_class(entry: Any) -> tuple[type[gymnasium.Wrapper], dict[str, Any]]:
    """Return the class that an entry of `env.wrappers` names, and its arguments.

    Raises:
        UserError: If the entry has another form, or names no class derived from `gymnasium.Wrapper`.
    """
    with_arguments = {"kwargs": {}} | entry if isinstance(entry, dict) else {"name": entry, "kwargs": {}}
    name, kwargs = with_arguments.get("name"), with_arguments.pop("kwargs")
    if with_arguments.keys() != {"name"} or not isinstance(name, str) or not isinstance(kwargs, dict):
        form = "module.Wrapper, or {name: module.Wrapper, kwargs: {size: 8}}"
        raise UserError(f"env.wrappers has the entry {entry}; an entry is {form}.")
    asked = f"env.wrappers={name}"
    module_name, _, class_name = name.rpartition(".")
    if not module_name or module_name.startswith("."):
        raise UserError(f"{asked} names no module; write env.wrappers=[module.{class_name}].")
    module = _import_for(asked, module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise UserError(
            f"{asked}: {module_name} has no {class_name}.{did_you_mean(class_name, vars(module))}"
        )
    if not isinstance(found, type) or not issubclass(found, gymnasium.Wrapper):
        repair = f"Derive it: class {class_name}(gymnasium.Wrapper)"
        raise UserError(f"{asked}: {class_name} is no class derived from gymnasium.Wrapper. {repair}.")
    return found, kwargs


def require_no_statistics(env: gymnasium.Env[Any, Any]) -> None:
    """Refuse a wrapper of Gymnasium that scales by what it has seen so far; no checkpoint has that."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, _RUNNING_STATISTICS):
            raise UserError(
                f"has the wrapper {type(env).__name__}, which scales by what it has seen: a resumed run and "
                "an evaluation would get other numbers. Leave it out: symlog learns from numbers of any size."
            )
        env = env.env


def wrapped(env: gymnasium.Env, entry: Any) -> gymnasium.Env:
    """Return an environment in one more wrapper of `env.wrappers`."""
    wrapper, kwargs = wrapper_class(entry)
    try:
        return wrapper(env, **copy.deepcopy(kwargs))
    except CODE_FAULTS as error:
        raise UserError(
            f"with env.wrappers={wrapper.__module__}.{wrapper.__name__} cannot be made: {with_place(error)}."
        ) from error


def failure_to_make(registered: EnvSpec, kwargs: Mapping[str, Any], error: BaseException) -> str:
    """Return what went wrong when an environment was made, to stand after its id."""
    try:
        creator: Any = registered.entry_point
        takes = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator)
    except Exception:  # of any kind: it is the environment's module that is imported
        return f"cannot be made: {with_place(error)}."
    known = {name for name in takes.parameters if name not in (*_OWN_ARGUMENTS, "self")}
    unknown = [name for name in kwargs if name not in known]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in takes.parameters.values())
    if takes_all or not unknown:
        return f"cannot be made: {with_place(error)}."
    listed = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    return f"takes no env.kwargs.{unknown[0]}; {listed}.{did_you_mean(unknown[0], known)}"


def _import_for(asked: str, module: str) -> ModuleType:
    """Import a module; a `UserError` that begins with what was `asked` if that fails."""
    try:
        return _import(module)
    except CODE_FAULTS as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"{asked}: there is no module {error.name}, neither installed nor in the current "
                f"folder. Install it, or start in the folder of {error.name}.py."
            ) from error
        raise UserError(f"{asked}: importing {module} failed with {with_place(error)}.") from error


def _import(module: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.append("")  # behind all that is installed
    with KeptState(module, "when it was imported"):
        return importlib.import_module(module)


def validate_env(config: EnvConfig) -> None:
    """Check that the environment exists, without starting it.

    Raises:
        UserError: If the game, the id or a wrapper is unknown; it names the key and the nearest known name.
    """
    if config.suite is Suite.atari and config.game not in atari_games():
        raise UserError(
            f"env.game={config.game} is not one of the {len(atari_games())} Atari games of ale-py."
            f"{did_you_mean(config.game.lower(), atari_games())} Names are snake_case, as in "
            f"env.game=ms_pacman."
        )
    if config.suite is Suite.gymnasium:
        check_id(config.id)
        check_arguments(config.kwargs or {})
        for entry in config.wrappers:
            wrapper_class(entry)
    elif config.kwargs or config.wrappers:
        repair = "Leave them out, or play its Gymnasium id by env=gymnasium env.id=ID"
        raise UserError(
            f"env.kwargs and env.wrappers need env=gymnasium, got {config.suite.value}. {repair}."
        )


@lru_cache(maxsize=1)
def atari_games() -> list[str]:
    """Return the games that ale-py registers; it ends the process on its other ROMs, made for two players."""
    specs = (spec for env_id, spec in gymnasium.registry.items() if env_id.startswith("ALE/"))
    return sorted({spec.kwargs["game"] for spec in specs})
