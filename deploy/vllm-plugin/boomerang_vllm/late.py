"""Classes of vLLM, as soon as a process has them, and never imported for us.

vLLM loads plugins in every process: front end, engine core, each worker, each inspection of a model. None
needs all of what is wrapped, and importing it anyway would load the transfer library into the front end and
the front end into every worker. So a class is wrapped when the engine itself imports its module.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from boomerang_vllm import guard

Action = Callable[[type], None]


def with_class(part: str, candidates: Iterable[tuple[str, str]], action: Action) -> bool:
    """Call ``action`` with the first of (module, class) that exists, now or when its module is imported.

    False where none exists, or where the action failed now; either is said once.
    """

    def find() -> None:
        tried = list(candidates)
        for module, name in tried:
            loaded = sys.modules.get(module)
            if loaded is not None:
                _act(loaded, name, action)
                return
            if _exists(module):
                _watch.expect(module, functools.partial(_later, part, name, action))
                return
        raise guard.NotAsExpected(f"none of these is there: {', '.join(module for module, _ in tried)}")

    return guard.install(part, find)


def _act(module: ModuleType, name: str, action: Action) -> None:
    owner = getattr(module, name, None)
    if not isinstance(owner, type):
        raise guard.NotAsExpected(f"{module.__name__} has no class {name}")
    action(owner)


def _later(part: str, name: str, action: Action, module: ModuleType) -> None:
    guard.install(part, lambda: _act(module, name, action))


def _exists(module: str) -> bool:
    """Whether there is a file for it. Python's own search would import the packages that it is in."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    places = [Path(root).joinpath(*parts) for root in roots]
    return any(
        (place / "__init__.py").is_file() or any(place.parent.glob(f"{place.name}.*")) for place in places
    )


class _Watch(MetaPathFinder):
    """Stands first among Python's finders, asks the others, and is called back once a module has run."""

    def __init__(self) -> None:
        self._expected: dict[str, list[Callable[[ModuleType], None]]] = {}

    def expect(self, module: str, then: Callable[[ModuleType], None]) -> None:
        self._expected.setdefault(module, []).append(then)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._expected:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    self._follow(fullname, spec)
                    return spec
        return None

    def _follow(self, fullname: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            run(module)
            for then in self._expected.pop(fullname, ()):
                then(module)

        try:
            loader.exec_module = exec_module  # this loader is of this one module
        except AttributeError as error:
            guard.say_once(f"late:{fullname}", "Boomerang: %s cannot be followed", fullname, error=error)


_watch = _Watch()
