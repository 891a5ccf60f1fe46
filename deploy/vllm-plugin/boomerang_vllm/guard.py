"""Contact with an engine whose inside may not be as expected: looked up, checked, and left alone if not.

Two rules. A part that does not find what it needs says so once and stays off. A part that fails while it runs
says so once and the engine goes on with what it would have done by itself.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

# Below vLLM's own logger, whose handlers and level are set up; other names would not be shown.
log = logging.getLogger("vllm.boomerang_vllm")

_MARK = "__boomerang_wrapped__"
_said: set[str] = set()


class NotAsExpected(Exception):
    """Something in the engine is missing or has another shape."""


def say_once(key: str, message: str, *arguments: object, error: BaseException | None = None) -> None:
    """Log a warning the first time ``key`` is seen in this process."""
    if key not in _said:
        _said.add(key)
        log.warning(message, *arguments, exc_info=error)


def method(owner: type, name: str, parameters: Iterable[str]) -> Callable[..., Any]:
    """A method of a class that takes these parameters, by these names. Raises NotAsExpected."""
    found = inspect.getattr_static(owner, name, None)
    if not inspect.isfunction(found):
        raise NotAsExpected(f"{owner.__name__} has no method {name}")
    missing = set(parameters) - set(inspect.signature(found).parameters)
    if missing:
        raise NotAsExpected(f"{owner.__name__}.{name} has no parameter {', '.join(sorted(missing))}")
    return found


def wrap(
    owner: type,
    name: str,
    parameters: Iterable[str],
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Put ``make(original)`` in a method's place, once. Raises NotAsExpected."""
    original = method(owner, name, parameters)
    if hasattr(original, _MARK):
        return
    wrapped = functools.wraps(original)(make(original))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def install(part: str, steps: Callable[[], None]) -> bool:
    """Switch a part on; say why if it stays off."""
    try:
        steps()
    except NotAsExpected as error:
        say_once(f"off:{part}", "Boomerang: %s is off, as this vLLM is not as expected: %s", part, error)
    except Exception as error:  # serving goes on without us
        say_once(f"off:{part}", "Boomerang: %s is off", part, error=error)
    else:
        return True
    return False
