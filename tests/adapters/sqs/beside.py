"""Tests that mostly wait run side by side: those with the mark ``beside``.

The first of a file that is asked for begins all that were selected, each in a thread and on an
event loop of its own; every test then waits for its own. They take ``server`` and parameters,
nothing else: whatever else they need they make themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

Body: TypeAlias = Callable[..., Coroutine[Any, Any, None]]

AT_ONCE = 8
SECONDS = 240.0

_BEGUN = pytest.StashKey[dict[str, Future[None]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside: runs side by side with others of its file")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("beside") is None:
        return None
    file = pyfuncitem.getparent(pytest.Module)
    assert file is not None
    if _BEGUN not in file.stash:
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="beside")
        file.addfinalizer(lambda: pool.shutdown(cancel_futures=True))
        server = pyfuncitem.funcargs["server"]
        file.stash[_BEGUN] = {
            item.nodeid: pool.submit(_run, item.obj, {**_parameters(item), "server": server})
            for item in pyfuncitem.session.items
            if isinstance(item, pytest.Function)
            and item.getparent(pytest.Module) is file
            and item.get_closest_marker("beside") is not None
        }
    file.stash[_BEGUN][pyfuncitem.nodeid].result()
    return True


def _parameters(item: pytest.Function) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _run(body: Body, arguments: dict[str, Any]) -> None:
    arguments.pop("anyio_backend", None)
    asyncio.run(asyncio.wait_for(body(**arguments), SECONDS))
