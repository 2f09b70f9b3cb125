"""Apps and brokers used from several loops, threads and processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, Broker, Runner, RunReport, connect
from brokerwq.driver import Driver
from brokerwq.errors import ClosedError, ConfigError, TransientError
from brokerwq.message import new_message_id
from brokerwq.testing.faults import Faults, Hang
from tests.adapters.producers import check_silence
from tests.cases.lab import PATIENCE, ROOT, Place
from tests.cases.ring import Ring


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path)


def in_a_fork(act: Callable[[], object]) -> int:
    """Run ``act`` in a forked child; its exit code, 0 if all went well."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(_wait(pid))
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001 -- the child must end here, whatever happens
        traceback.print_exc()
    os._exit(code)


def _wait(pid: int) -> int:
    timer = threading.Timer(PATIENCE, os.kill, [pid, 9])
    timer.start()
    try:
        return os.waitpid(pid, 0)[1]
    finally:
        timer.cancel()


# -- loops ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_app_serves_one_loop_after_another(ring: Ring) -> None:
    for n in range(4):
        asyncio.run(ring.work.enqueue(n=n))
    assert ring.drained() == [0, 1, 2, 3]


@pytest.mark.slow
def test_one_app_serves_loops_that_were_left_open_or_closed_properly(ring: Ring) -> None:
    async def properly(n: int) -> None:
        async with ring.app:
            await ring.work.enqueue(n=n)
        await ring.work.enqueue(n=n + 100)

    for n in range(3):
        asyncio.run(properly(n))
    assert ring.drained() == [0, 1, 2, 100, 101, 102]


def by_hand(call: Coroutine[Any, Any, object]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(call)
    loop.close()
    loop.close()  # as asyncio has it: the second time does nothing


@pytest.mark.parametrize("run", [asyncio.run, by_hand])
def test_what_a_loop_has_opened_is_closed_when_it_ends(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, object]], object]
) -> None:
    closed: list[Driver] = []

    def watched(driver: Driver) -> Driver:
        close = driver.aclose

        async def aclose() -> None:
            await close()
            closed.append(driver)

        driver.aclose = aclose  # type: ignore[method-assign]
        return driver

    ring = Ring(tmp_path)
    with ring.app.on(f"sqlite:///{tmp_path}/other.db", driver=watched):
        for n in range(2):
            run(ring.work.enqueue(n=n))
            assert len(closed) == n + 1


@pytest.mark.slow
def test_a_loop_that_is_closed_by_hand_closes_each_of_several_brokers_once() -> None:
    async def use() -> list[Broker]:
        async with connect("memory://") as gone:
            pass
        apps = [App("memory://") for _ in range(3)]
        kept = [app.broker() for app in apps]
        for broker in kept:
            await broker.open()
        return [gone, *kept]

    loop = asyncio.new_event_loop()
    brokers = loop.run_until_complete(use())
    assert [broker.is_closed for broker in brokers] == [True, False, False, False]
    loop.close()

    assert all(broker.is_closed for broker in brokers)


@pytest.mark.slow
def test_a_program_that_only_sends_ends_without_a_word(tmp_path: Path) -> None:
    check_silence(f"sqlite:///{tmp_path}/jobs.db", "q")


HANGING = """
import asyncio
from brokerwq import App

def hanging(driver):
    driver.aclose = lambda: asyncio.sleep(3600)
    return driver

app = App("memory://")

@app.worker("q")
async def work() -> None: ...

with app.on("memory://hanging", driver=hanging):
    work.enqueue_sync()
"""


AT_THE_END = """
import atexit
import sys
import types
from brokerwq import App

app = App("memory://")

@app.worker("q")
async def work() -> None: ...

class Late:
    def __del__(self, send=work.enqueue_sync) -> None:
        send()

sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].late = Late()  # goes when modules go
atexit.register(lambda: print(work.enqueue_sync() != "", flush=True))
"""


@pytest.mark.slow
def test_a_destructor_at_the_very_end_is_told_that_it_is_too_late() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", AT_THE_END],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, "True\n")
    assert "ClosedError: the interpreter ends" in answer.stderr


@pytest.mark.slow
def test_a_program_ends_soon_though_its_broker_does_not_answer() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", HANGING],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.slow
def test_one_app_serves_several_loops_at_once(ring: Ring) -> None:
    failures: list[BaseException] = []

    def produce(start: int) -> None:
        async def enqueue() -> None:
            await ring.work.enqueue_many([ring.work.call(n=start + n) for n in range(50)])

        try:
            asyncio.run(enqueue())
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(start,)) for start in range(0, 300, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ring.drained() == list(range(300))


@pytest.mark.slow
def test_one_app_runs_workers_and_sends_in_one_process_again_and_again(ring: Ring) -> None:
    async def round_(n: int) -> None:
        await ring.work.enqueue(n=n)
        await ring.app.drain(log=False)
        await ring.work.enqueue(n=n + 100)
        await ring.app.drain(log=False)

    for n in range(3):
        asyncio.run(round_(n))
    assert ring.seen == [0, 100, 1, 101, 2, 102]


async def test_a_broker_that_was_closed_says_so(both: Place) -> None:
    async with connect(both.url, clock=both.clock) as broker:
        pass
    with pytest.raises(ClosedError, match="connect again"):
        await broker.send("q", b"x")
    await broker.aclose()


@pytest.mark.slow
async def test_an_app_that_was_closed_opens_again(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work() -> None:
        pass

    async with app:
        await work.enqueue()
    await app.aclose()
    await work.enqueue()
    assert (await both.drain(app)).done == 2


async def test_closing_an_app_ends_a_send_that_nobody_answers(place: Place) -> None:
    faults = Faults(clock=place.clock)
    faults.add("send", Hang())
    app = place.faulty_app(faults)

    @app.worker("q")
    async def work() -> None:
        pass

    sending = asyncio.create_task(work.enqueue())
    await place.until(lambda: any(call.operation == "send" for call in faults.calls), step=0.0)
    await app.aclose()

    with pytest.raises(ClosedError):
        await asyncio.wait_for(sending, PATIENCE)


async def test_a_question_about_a_queue_that_nobody_answers_comes_to_an_end(place: Place) -> None:
    faults = Faults(clock=place.clock)
    faults.add("inspect", Hang())
    broker = place.faulty_app(faults).broker()

    with pytest.raises(TransientError, match="inspect: the broker did not answer within"):
        await place.drive(broker.inspect("q"))


# -- threads ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_without_a_loop_send_from_any_thread(ring: Ring) -> None:
    failures: list[BaseException] = []

    def produce(n: int) -> None:
        try:
            ring.work.enqueue_sync(n=n)
            ring.work.enqueue_many_sync(ring.work.call(n=n + 100 * m) for m in (1, 2))
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ring.drained() == [n + 100 * m for m in range(3) for n in range(20)]
    backgrounds = [each for each in threading.enumerate() if each.name == "brokerwq-background"]
    assert len({id(each) for each in backgrounds}) == len(backgrounds)


@pytest.mark.slow
def test_all_threads_share_one_background_loop(ring: Ring) -> None:
    before = _backgrounds()
    start = threading.Barrier(8)

    def produce(n: int) -> None:
        start.wait()
        ring.work.enqueue_sync(n=n)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _backgrounds() - before == 1
    assert ring.drained() == list(range(8))


@pytest.mark.slow
def test_what_strikes_while_the_background_loop_begins_may_send_too(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = asyncio.new_event_loop

    def struck() -> asyncio.AbstractEventLoop:
        monkeypatch.setattr(asyncio, "new_event_loop", make)
        ring.work.enqueue_sync(n=1)  # as a signal handler or a finalizer would, in this thread
        return make()

    monkeypatch.setattr(asyncio, "new_event_loop", struck)
    sending = threading.Thread(target=lambda: ring.work.enqueue_sync(n=2), daemon=True)
    sending.start()
    sending.join(PATIENCE)
    monkeypatch.setattr(asyncio, "new_event_loop", make)
    assert not sending.is_alive()
    assert ring.drained() == [1, 2]


def _backgrounds() -> int:
    return sum(each.name == "brokerwq-background" for each in threading.enumerate())


async def test_waiting_inside_a_loop_is_refused_with_the_way_out(both: Place) -> None:
    app = both.app()

    @app.worker("q")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    with pytest.raises(ConfigError, match="without _sync"):
        work.enqueue_sync(n=1)
    with pytest.raises(ConfigError, match="without _sync"):
        work.enqueue_many_sync([work.call(n=1)])


@pytest.mark.slow
def test_a_plain_worker_may_send_by_itself(ring: Ring) -> None:
    app, seen = ring.app, ring.seen

    @app.worker("plain")
    def plain(*, n: int) -> None:
        seen.append(n)
        if n < 3:
            plain.enqueue_sync(n=n + 1)

    async def run() -> None:
        await plain.enqueue(n=0)
        await app.drain("plain", log=False)

    asyncio.run(run())
    assert seen == [0, 1, 2, 3]


async def test_a_runner_that_ends_leaves_the_connection_to_those_who_used_it_before(
    both: Place,
) -> None:
    app = both.app()

    @app.worker("q")
    async def work(*, n: int) -> None: ...

    await work.enqueue(n=0)
    used = app.broker()
    assert (await both.drain(app, "q")).done == 1
    assert app.broker() is used
    assert not used.is_closed
    await app.aclose()
    await both.drain(app, "q")  # which finds nothing in use
    assert not app.place.is_connected


@pytest.mark.slow
async def test_the_last_of_two_runners_closes_what_they_share(both: Place) -> None:
    app, begun, go_on = both.app(), asyncio.Event(), asyncio.Event()

    @app.worker("short")
    async def short() -> None: ...

    @app.worker("long")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    sender = both.app()
    await sender.worker("short")(short.fn).enqueue()
    await sender.worker("long")(work.fn).enqueue()
    long = Runner(app, "long", log=False)
    running = asyncio.create_task(long.run(handle_signals=False))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    shared = app.broker()
    assert (await both.drain(app, "short")).done == 1
    assert not shared.is_closed
    go_on.set()
    long.stop()
    assert (await both.drive(_answer(running))).done == 1
    assert shared.is_closed


async def test_a_signal_stops_all_runners_of_a_loop(both: Place) -> None:
    running: list[asyncio.Task[RunReport]] = []
    for _ in range(2):
        app, begun = both.app(), asyncio.Event()

        @app.lifespan
        async def lifespan(begun: asyncio.Event = begun) -> AsyncGenerator[None]:
            begun.set()
            yield

        @app.worker("q")
        async def work() -> None: ...

        running.append(asyncio.create_task(Runner(app, log=False).run()))
        await asyncio.wait_for(begun.wait(), PATIENCE)
    os.kill(os.getpid(), signal.SIGTERM)
    for each in running:
        await both.drive(_answer(each))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def _answer(running: asyncio.Task[RunReport]) -> RunReport:
    return await running


@pytest.fixture
def _restless_threads() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_restless_threads")
def test_ids_made_in_many_threads_are_all_different() -> None:
    made: list[list[str]] = [[] for _ in range(6)]

    def make(ids: list[str]) -> None:
        ids.extend(new_message_id() for _ in range(15_000))

    threads = [threading.Thread(target=make, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({each for ids in made for each in ids}) == 90_000


# -- processes --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fork_and_its_parent_both_send(ring: Ring) -> None:
    ring.work.enqueue_sync(n=0)
    assert in_a_fork(lambda: [ring.work.enqueue_sync(n=n) for n in (1, 2, 3)]) == 0
    ring.work.enqueue_sync(n=4)
    assert in_a_fork(lambda: asyncio.run(ring.work.enqueue(n=5))) == 0
    asyncio.run(ring.work.enqueue(n=6))
    assert ring.drained() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "left"),
    [("nothing", [0, 2]), ("send", [0, 1, 2]), ("send async", [0, 1, 2]), ("drain", [2])],
)
def test_a_fork_that_ends_as_scripts_do_leaves_its_parent_alone(
    ring: Ring, act: str, left: list[int]
) -> None:
    module = "tests.cases.apps.forking"
    # From 3.12 on Python warns of every fork beside a thread, which is what is tried here.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *quiet, "-m", module, str(ring.file.parent), act]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert ring.drained() == left


@pytest.mark.slow
def test_many_forks_at_once_send_at_once(ring: Ring) -> None:
    ring.work.enqueue_sync(n=0)
    pids: list[int] = []
    for child in range(1, 5):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                for n in range(20):
                    ring.work.enqueue_sync(n=child * 100 + n)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for n in range(1, 20):
        ring.work.enqueue_sync(n=n)
    assert [os.waitstatus_to_exitcode(_wait(pid)) for pid in pids] == [0] * 4
    expected = [child * 100 + n for child in range(5) for n in range(20)]
    assert ring.drained() == sorted(expected)


@pytest.mark.slow
def test_a_fork_uses_one_background_loop_too(ring: Ring) -> None:
    ring.work.enqueue_sync(n=0)

    def produce() -> None:
        for n in range(1, 4):
            ring.work.enqueue_sync(n=n)
        assert _backgrounds() == 1, threading.enumerate()

    assert in_a_fork(produce) == 0
    assert ring.drained() == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_fork_while_the_parent_is_sending(ring: Ring) -> None:
    stop = threading.Event()
    sent: list[int] = []

    def produce() -> None:
        while not stop.is_set():
            ring.work.enqueue_sync(n=len(sent))
            sent.append(len(sent))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        codes = [
            in_a_fork(lambda n=n: ring.work.enqueue_sync(n=100_000 + n))  # type: ignore[misc]
            for n in range(8)
        ]
    finally:
        stop.set()
        thread.join()
    assert codes == [0] * 8
    assert ring.drained() == sent + [100_000 + n for n in range(8)]


@pytest.mark.slow
def test_a_fork_may_run_the_workers(ring: Ring) -> None:
    ring.work.enqueue_sync(n=1)

    def drain() -> None:
        async def run() -> int:
            return (await ring.app.drain(log=False)).done

        assert asyncio.run(run()) == 1

    assert in_a_fork(drain) == 0
    ring.work.enqueue_sync(n=2)
    assert ring.drained() == [2]


@pytest.mark.slow
def test_a_fork_inside_a_running_loop_opens_its_own(ring: Ring) -> None:
    async def main() -> None:
        await ring.work.enqueue(n=0)
        code = await asyncio.to_thread(in_a_fork, lambda: asyncio.run(ring.work.enqueue(n=1)))
        assert code == 0
        await ring.work.enqueue(n=2)

    asyncio.run(main())
    assert ring.drained() == [0, 1, 2]


def test_memory_in_a_fork_says_that_it_is_a_copy() -> None:
    app = App("memory://")

    @app.worker("q")
    async def work() -> None:
        pass

    work.enqueue_sync()

    def use() -> None:
        with pytest.raises(ClosedError, match="fork"):
            work.enqueue_sync()

    assert in_a_fork(use) == 0
    work.enqueue_sync()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_sends_from_its_children(ring: Ring, method: str) -> None:
    ring.work.enqueue_sync(n=0)
    context: Any = multiprocessing.get_context(method)
    children = [
        context.Process(target=_produce, args=(str(ring.file.parent), n)) for n in range(1, 4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    ring.work.enqueue_sync(n=4)
    assert ring.drained() == [0, 1, 2, 3, 4]


def _produce(folder: str, n: int) -> None:
    Ring(Path(folder)).work.enqueue_sync(n=n)
