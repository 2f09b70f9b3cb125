"""Finds the ``App`` that a verb works for: MODULE:ATTR, BROKERWQ_APP, or pyproject.toml."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from brokerwq.errors import BrokerwqError, ConfigError

if TYPE_CHECKING:
    from brokerwq.app import App

VARIABLE = "BROKERWQ_APP"
_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_spec(text: str) -> bool:
    """Whether ``text`` looks like MODULE:ATTR; no queue, worker or ``key=value`` does."""
    return _SPEC.fullmatch(text) is not None


def default_spec() -> tuple[str, str] | None:
    """The app that is named outside the command line, and where; None where none is.

    Raises:
        ConfigError: pyproject.toml cannot be read, or names something else than text.
    """
    if spec := os.environ.get(VARIABLE):
        return spec, VARIABLE
    path = Path("pyproject.toml")
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        msg = f"./{path} cannot be read: {exc}"
        raise ConfigError(msg) from exc
    found: object = settings.get("tool", {}).get("brokerwq", {}).get("app")
    if found is None:
        return None
    if not isinstance(found, str):
        msg = f'./{path}: [tool.brokerwq] app must be "MODULE:ATTR", not {found!r:.100}'
        raise ConfigError(msg)
    return found, f"[tool.brokerwq] in ./{path}"


def load_app(spec: str | None) -> App:
    """The app that ``spec`` names; None takes the one named outside the command line.

    Raises:
        ConfigError: there is none, or its module cannot be imported.
    """
    origin = ""
    if spec is None:
        found = default_spec()
        if found is None:
            msg = (
                "no app is named: give MODULE:ATTR (for example jobs:app), set "
                f'{VARIABLE}, or write [tool.brokerwq] app = "jobs:app" in ./pyproject.toml'
            )
            raise ConfigError(msg)
        spec, origin = found[0], f" (from {found[1]})"
    if not is_spec(spec):
        msg = f"{spec!r:.100}{origin} is no MODULE:ATTR; write for example jobs:app"
        raise ConfigError(msg)
    module_name, _, path = spec.partition(":")
    module = _import(module_name, origin)
    return _app_in(module, path, spec, origin)


def _import(name: str, origin: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (name == exc.name or name.startswith(f"{exc.name}.")):
            raise _failed(name, exc) from exc
        msg = f"there is no module {exc.name}{origin}, neither in {here} nor installed"
        raise ConfigError(msg) from exc
    except BrokerwqError:
        raise
    except (Exception, SystemExit) as exc:
        raise _failed(name, exc) from exc


def _failed(name: str, error: BaseException) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({Path(error.filename).name} line {error.lineno})"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {text}{where}")


def _app_in(module: ModuleType, path: str, spec: str, origin: str) -> App:
    from brokerwq.app import App

    found: object = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f"; it has {', '.join(apps)}" if apps else "; it holds no App at all"
            msg = f"module {module.__name__} has no {path}{origin}{hint}"
            raise ConfigError(msg) from None
    if not isinstance(found, App):
        msg = f"{spec}{origin} is of type {type(found).__name__}, not brokerwq.App"
        raise ConfigError(msg)
    return found
