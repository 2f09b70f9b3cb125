"""``/live`` and ``/ready``, as a probe sees them."""

from __future__ import annotations

import asyncio
import json
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from brokerwq import App, Runner
from brokerwq.errors import (
    ConfigError,
    ConnectionLostError,
)
from brokerwq.health import serve_health
from brokerwq.testing.faults import (
    Fail,
    Faults,
)
from tests.cases.lab import Place

GONE = ConnectionLostError("cut")


@pytest.fixture
def faults(place: Place) -> Faults:
    return Faults(clock=place.clock)


# -- health -----------------------------------------------------------------------------------


async def _ask(address: str, path: str) -> tuple[int, dict[str, object]]:
    def ask() -> tuple[int, dict[str, object]]:
        try:
            with urlopen(f"http://{address}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(ask)


@pytest.mark.slow
async def test_health_tells_the_state_over_http(place: Place, faults: Faults) -> None:
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    runner = Runner(app, log=False)
    with serve_health(runner, "127.0.0.1:0") as address:
        assert await _ask(address, "/live") == (200, {"state": "starting", "reasons": []})
        assert (await _ask(address, "/ready"))[0] == 503
        assert (await _ask(address, "/other"))[0] == 404
        async with place.running(app, runner=runner):
            assert await _ask(address, "/ready") == (200, {"state": "ready", "reasons": []})
            faults.add("claim", Fail(GONE), times=50)
            await place.passes(15)
            status, told = await _ask(address, "/ready")
            assert (status, told["state"]) == (503, "degraded")
            assert "cut" in str(told["reasons"])
            assert (await _ask(address, "/live"))[0] == 200
            assert (await _ask(address, "/live?x=1"))[0] == 200
        assert (await _ask(address, "/live"))[0] == 503
    with pytest.raises(OSError, match="refused"):
        await _ask(address, "/live")


@pytest.mark.parametrize(
    "address", ["", "nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":-1", "256.1.1.1:80"]
)
def test_an_address_that_cannot_be_used_is_refused(place: Place, address: str) -> None:
    runner = Runner(_with_worker(place), log=False)
    with pytest.raises(ConfigError, match="health"), serve_health(runner, address):
        pass


@pytest.mark.slow
def test_an_address_in_use_is_refused(place: Place) -> None:
    runner = Runner(_with_worker(place), log=False)
    with (
        serve_health(runner, "127.0.0.1:0") as address,
        pytest.raises(ConfigError, match="health"),
        serve_health(runner, address),
    ):
        pass


def _with_worker(place: Place) -> App:
    app = place.app()

    @app.worker("q")
    async def work() -> None:
        pass

    return app
