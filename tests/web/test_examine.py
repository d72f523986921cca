"""The diagnosis of a run that is looked at."""

from __future__ import annotations

import asyncio
import sys
import threading

import psutil
import pytest
from anyio import to_thread
from builders import RunBuilder
from processes import DEADLINE_S

from stethos.web import examine
from stethos.web.examine import BackgroundDiagnosis, Examination
from stethos.web.output import output_of
from stethos.web.run_cache import RunCache
from stethos.wiring import command_line


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What had happened when a diagnosis began."""
    order: list[str] = []

    def beginning() -> tuple[str, ...]:
        order.append("diagnosis")
        return tuple(command_line())

    monkeypatch.setattr(examine, "command_line", beginning)
    monkeypatch.setattr(examine, "_QUIET_S", 0.2)
    return order


async def look(cache: RunCache, order: list[str], monkeypatch: pytest.MonkeyPatch) -> Examination:
    """Look at a run while a panel of it takes its time."""
    is_asked, may_end = threading.Event(), threading.Event()

    def panel(*_: object) -> bytes:
        is_asked.set()
        assert may_end.wait(DEADLINE_S)
        order.append("panel")
        return b"answer"

    monkeypatch.setattr(cache.readers, "ask", panel)
    asked = asyncio.create_task(to_thread.run_sync(cache.answer, "demo", ("panel",), "panel"))
    await to_thread.run_sync(is_asked.wait)
    known = BackgroundDiagnosis(cache).poke("demo", "1")
    await asyncio.sleep(1.0)
    may_end.set()
    await asked
    assert known.task is not None
    await known.task
    return known


def test_panels_that_are_asked_for_go_before_the_first_diagnosis(
    run: RunBuilder, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run.process("p0", is_alive=False)
    process.steps(5)
    process.finish()
    known = asyncio.run(look(RunCache(run.path.parent), begun, monkeypatch))
    assert begun == ["panel", "diagnosis"] and known.result is not None


def test_a_page_that_never_stops_asking_is_diagnosed_all_the_same(
    run: RunBuilder, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "_MOST_WAIT_S", 0.3)
    run.process("p0", is_alive=False).finish()
    known = asyncio.run(look(RunCache(run.path.parent), begun, monkeypatch))
    assert begun == ["diagnosis", "panel"] and known.result is not None


def test_a_server_that_was_idle_waits_for_the_panels_of_a_new_page(
    run: RunBuilder, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.process("p0", is_alive=False).finish()
    cache = RunCache(run.path.parent)
    cache._made_s -= 100.0

    def panel(*_: object) -> bytes:
        begun.append("panel")
        return b"answer"

    monkeypatch.setattr(cache.readers, "ask", panel)
    cache.readers.ask = lambda *_: begun.append("panel") or b"answer"  # type: ignore[method-assign,assignment]

    async def scenario() -> None:
        known = BackgroundDiagnosis(cache).poke("demo", "1")
        await asyncio.sleep(0)
        await to_thread.run_sync(cache.answer, "demo", ("panel",), "job")
        assert known.task is not None
        await known.task

    asyncio.run(scenario())
    assert begun == ["panel", "diagnosis"]


SAYS = {
    "endless": "while True: print('x' * 9999)",
    "endless complaints": "import sys\nwhile True: sys.stderr.write('x' * 9999)",
    "reads nothing": "print('done')",
    "silent": "import time; time.sleep(9999)",
}


async def said_by(program: str, sent: bytes | None = None, limit_s: float = DEADLINE_S) -> tuple[bytes, bytes]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        return await output_of(process, 100_000, limit_s, sent)
    finally:
        assert process.returncode is not None and not psutil.pid_exists(process.pid)


def test_a_command_that_says_too_much_or_nothing_is_ended() -> None:
    assert [len(one) for one in asyncio.run(said_by(SAYS["endless"]))] == [100_001, 0]
    assert [len(one) for one in asyncio.run(said_by(SAYS["endless complaints"]))] == [0, 100_001]
    assert asyncio.run(said_by(SAYS["reads nothing"], sent=b"x" * (1 << 22)))[0] == b"done\n"
    with pytest.raises(TimeoutError):
        asyncio.run(said_by(SAYS["silent"], limit_s=0.2))


def test_a_diagnosis_that_says_too_much_is_an_error(
    run: RunBuilder, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run.process("p0", is_alive=False)
    process.steps(5)
    process.finish()
    monkeypatch.setattr(examine, "_LARGEST_BYTES", 20)

    async def look_once() -> Examination:
        known = BackgroundDiagnosis(RunCache(run.path.parent)).poke(run.path.name, "1")
        assert known.task is not None
        await known.task
        return known

    known = asyncio.run(look_once())
    assert known.result is None and "says more than" in known.error
