"""What a program says: its logging, its spans and the numbers it logs. None of it can hurt the program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import pty
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import environment, finish, start, start_command
from recording import Recording

import stethos
from stethos.observe import boot
from stethos.record.layout import MOST_NAMES

Record = Callable[..., Recording]
ROWS = "SELECT level, logger, message, fields, exception FROM logs ORDER BY t_ns"


class Unspeakable:
    """Has no words for itself."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """A logger of the test's own that takes everything."""
    logger = logging.getLogger(f"test.{request.node.name[:40]}")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


# Logs ------------------------------------------------------------------------------------------------------


def test_every_level_is_recorded_with_its_logger_and_message(record: Record, logger: logging.Logger) -> None:
    recording = record()
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(logger, level)("at %s, %d", level, 7)
    logger.log(35, "in between")
    assert [row[:3] for row in recording.rows(ROWS)] == [
        *(
            (level.upper(), logger.name, f"at {level}, 7")
            for level in ("debug", "info", "warning", "error", "critical")
        ),
        ("Level 35", logger.name, "in between"),
    ]


def test_what_its_logger_holds_back_is_not_recorded(record: Record, logger: logging.Logger) -> None:
    recording = record()
    logger.setLevel(logging.ERROR)
    logger.warning("held back")
    logging.disable(logging.CRITICAL)
    try:
        logger.critical("disabled")
    finally:
        logging.disable(logging.NOTSET)
    assert recording.rows(ROWS) == []


def test_extra_fields_become_json(record: Record, logger: logging.Logger) -> None:
    recording = record()
    logger.info("a", extra={"epoch": 3, "loss": 0.5, "tags": ["x", {"y": None}], "text": 'quo"te', "flag": True})
    logger.info("b")
    (first, second) = recording.rows(ROWS)
    expected = {"epoch": 3, "loss": 0.5, "tags": ["x", {"y": None}], "text": 'quo"te', "flag": True}
    assert json.loads(first[3]) == expected
    assert second[3] is None
    assert recording.column("SELECT CAST(fields ->> 'epoch' AS INTEGER) FROM logs WHERE message = 'a'") == [3]


def test_fields_json_has_no_word_for_are_shown(record: Record, logger: logging.Logger) -> None:
    recording = record()
    circle: list[object] = []
    circle.append(circle)
    logger.info(
        "odd",
        extra={"nan": math.nan, "inf": [math.inf], "tensor": torch.tensor([1.0]), "set": {1}, "circle": circle,
               "mute": Unspeakable(), "keys": {(1, 2): 3}, "long": "x" * 100_000},
    )  # fmt: skip
    fields = json.loads(recording.rows(ROWS)[0][3])
    assert fields["nan"] == "nan" and fields["inf"] == "[inf]"
    assert fields["tensor"] == "tensor([1.])" and fields["set"] == "{1}"
    assert fields["circle"] == "[[...]]" and fields["keys"] == "{(1, 2): 3}"
    assert "Unspeakable" in fields["mute"]
    assert 1000 < len(fields["long"]) < 10_000


def test_exceptions_come_with_their_traceback(record: Record, logger: logging.Logger) -> None:
    recording = record()
    try:
        raise ValueError("went wrong")
    except ValueError:
        logger.exception("caught")
    logger.error("none", exc_info=True)
    (first, second) = recording.rows(ROWS)
    assert first[4].startswith("Traceback (most recent call last)")
    assert first[4].endswith("ValueError: went wrong\n")
    assert second[4] is None


def test_loggers_that_do_not_propagate_are_heard_too(record: Record, logger: logging.Logger) -> None:
    recording = record()
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    try:
        logger.info("alone")
        logging.getLogger(f"{logger.name}.child").info("below it")
    finally:
        logger.propagate = True
    assert [row[2] for row in recording.rows(ROWS)] == ["alone", "below it"]


def test_a_message_is_recorded_once_however_many_handlers_there_are(record: Record, logger: logging.Logger) -> None:
    recording = record()
    for _ in range(3):
        logger.addHandler(logging.NullHandler())
    logger.info("once")
    assert len(recording.rows(ROWS)) == 1


def test_what_a_handler_raises_comes_out_as_ever(record: Record, logger: logging.Logger) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("pipe")

    recording = record()
    logger.addHandler(Broken())
    with pytest.raises(OSError, match="pipe"):
        logger.info("said before")
    assert [row[2] for row in recording.rows(ROWS)] == ["said before"]


def test_handlers_and_filters_see_what_they_always_saw(record: Record, logger: logging.Logger) -> None:
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    recording = record()
    logger.addHandler(Keep())
    logger.addFilter(lambda entry: "secret plan" not in entry.getMessage())
    logger.info("shown %s", "once")
    logger.info("secret plan")
    assert [entry.getMessage() for entry in seen] == ["shown once"]
    assert seen[0].args == ("once",)
    assert [row[2] for row in recording.rows(ROWS)] == ["shown once"]


def test_messages_that_cannot_be_formatted_do_not_silence_the_rest(
    record: Record, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """logging itself complains on stderr and goes on; so do we, after more failures than the guard allows."""
    recording = record()
    logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.propagate = False
    try:
        for _ in range(15):
            logger.info("%s", Unspeakable())
            logger.info("%d", "no number")
        logger.info("still here")
    finally:
        logger.propagate = True
    assert capsys.readouterr().err.count("--- Logging error ---") == 30
    rows = recording.rows(ROWS)
    assert len(rows) == 31
    assert rows[-1][2] == "still here"
    assert all("cannot be put into words" in row[2] for row in rows[:-1])
    assert recording.rows("SELECT * FROM gaps") == []


def test_secrets_are_taken_out(record: Record, logger: logging.Logger) -> None:
    recording = record()
    logger.warning("login with token=abc123def and https://me:hunter2@host/x", extra={"password": "hunter2", "lr": 0.1})
    try:
        raise ValueError("api_key: sk-aaaaaaaaaaaaaaaaaaaaaaaa")
    except ValueError:
        logger.exception("Authorization: Bearer abcdefghijklmnop")
    with contextlib.suppress(RuntimeError), stethos.span("connect", secret="hunter2"):
        raise RuntimeError("password=hunter2")
    text = str(recording.rows(ROWS) + recording.rows("SELECT fields, exception FROM spans"))
    for secret in ("abc123def", "hunter2", "sk-aaaa", "abcdefghijklmnop"):
        assert secret not in text
    assert '"lr": 0.1' in text


def test_control_characters_and_odd_text_survive(record: Record, logger: logging.Logger) -> None:
    recording = record()
    messages = ["", "zero \0 byte", "\x1b[31mred\x1b[0m", "ünï → 日本 🩺", "a\nb"]
    for message in messages:
        logger.info(message)
    logger.info("lone \ud800 surrogate")
    assert [row[2] or "" for row in recording.rows(ROWS)] == [*messages, "lone ? surrogate"]


def test_a_huge_message_is_cut(record: Record, logger: logging.Logger) -> None:
    recording = record()
    logger.info("x" * 10_000_000)
    assert recording.rows("SELECT length(message) BETWEEN 10000 AND 100000 FROM logs") == [(True,)]


def test_logging_inside_str_of_an_argument_works(record: Record, logger: logging.Logger) -> None:
    class Talkative:
        def __str__(self) -> str:
            logger.info("inner")
            return "outer"

    recording = record()
    logger.info("%s", Talkative())
    assert {row[2] for row in recording.rows(ROWS)} == {"inner", "outer"}


def test_many_threads_may_log_at_once(record: Record, logger: logging.Logger) -> None:
    recording = record()

    def work(number: int) -> None:
        for index in range(100):
            logger.info("%d-%d", number, index)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{number}-{index}" for number in range(4) for index in range(100)}
    assert set(recording.column("SELECT message FROM logs")) == expected


PROGRAM = """
import logging, sys
logging.warning("last resort, then basicConfig by itself")
logging.getLogger("a.b").warning("after it")
logging.basicConfig(level=logging.INFO, format="%(levelname)s|%(name)s|%(message)s", stream=sys.stdout, force=True)
logging.info("set up")
logging.getLogger("a").debug("held back")
print(len(logging.root.handlers), logging.getLogger("a").hasHandlers())
"""


def test_the_programs_own_output_is_what_it_was(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "talk.py"
    script.write_text(PROGRAM, encoding="utf-8")
    bare = finish(start(script))
    observed = finish(start_command("run", "--quiet", "--dir", tmp_path / "runs", script))
    assert (observed.stdout, observed.stderr, observed.returncode) == (bare.stdout, bare.stderr, 0)
    assert "INFO|root|set up" in bare.stdout and "last resort" in bare.stderr


# Spans -----------------------------------------------------------------------------------------------------


SPANS = "SELECT name, ok, trace, span, parent, fields, exception FROM spans ORDER BY t_ns, duration_ms DESC"


def spans_of(recording: Recording) -> dict[str, dict[str, Any]]:
    names = ("name", "ok", "trace", "span", "parent", "fields", "exception")
    return {row[0]: dict(zip(names, row, strict=True)) for row in recording.rows(SPANS)}


def test_spans_nest(record: Record) -> None:
    recording = record()
    with stethos.span("outer", shard=3), stethos.span("middle"):
        with stethos.span("first"):
            pass
        with stethos.span("second"):
            pass
    with stethos.span("apart"):
        pass
    spans = spans_of(recording)
    assert spans["outer"]["parent"] is None and spans["apart"]["parent"] is None
    assert spans["middle"]["parent"] == spans["outer"]["span"]
    assert spans["first"]["parent"] == spans["second"]["parent"] == spans["middle"]["span"]
    assert len({spans[name]["trace"] for name in ("outer", "middle", "first", "second")}) == 1
    assert spans["apart"]["trace"] != spans["outer"]["trace"]
    assert len({span["span"] for span in spans.values()}) == 5
    assert json.loads(spans["outer"]["fields"]) == {"shard": 3}
    assert recording.rows("SELECT count(*) FROM spans WHERE duration_ms < 0 OR NOT ok") == [(0,)]


def test_an_exception_is_recorded_and_passes_on(record: Record) -> None:
    recording = record()
    with pytest.raises(KeyError, match="lost"), stethos.span("outer"), stethos.span("inner"):
        raise KeyError("lost")
    spans = spans_of(recording)
    assert spans["inner"]["ok"] is False and spans["outer"]["ok"] is False
    assert spans["inner"]["exception"] == "KeyError: 'lost'"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_that_end_programs_pass_on_too(record: Record, error: type[BaseException]) -> None:
    recording = record()
    with pytest.raises(error), stethos.span("work"):
        raise error
    assert spans_of(recording)["work"]["exception"].startswith(error.__name__)


def test_an_exception_and_fields_without_words_are_no_trouble(record: Record) -> None:
    class Mute(Exception):
        __str__ = Unspeakable.__str__

    recording = record()
    for _ in range(15):
        with pytest.raises(Mute), stethos.span("work", what=Unspeakable(), nan=math.nan):
            raise Mute
    rows = recording.rows(SPANS)
    assert len(rows) == 15
    assert all(row[6].startswith("Mute: ") and json.loads(row[5])["nan"] == "nan" for row in rows)


def test_a_span_decorates_functions_and_methods(record: Record) -> None:
    recording = record()

    @stethos.span("square", unit="m")
    def square(x: int, *, offset: int = 0) -> int:
        """Of a number."""
        return x * x + offset

    class Worker:
        @stethos.span("work")
        def work(self) -> int:
            return square(3)

    assert (square(2, offset=1), Worker().work()) == (5, 9)
    assert (square.__name__, square.__doc__) == ("square", "Of a number.")
    rows = recording.rows("SELECT name, parent IS NULL FROM spans ORDER BY t_ns")
    assert rows == [("square", True), ("work", True), ("square", False)]


def test_a_decorated_function_may_call_itself_and_raise(record: Record) -> None:
    recording = record()

    @stethos.span("down")
    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        down(depth - 1)

    with pytest.raises(ValueError, match="bottom"):
        down(4)
    rows = recording.rows("SELECT span, parent, ok FROM spans ORDER BY t_ns")
    assert [parent for _, parent, _ in rows] == [None, *(span for span, _, _ in rows[:-1])]
    assert not any(ok for *_, ok in rows)


def test_a_span_may_be_entered_again_and_inside_itself(record: Record) -> None:
    recording = record()
    span = stethos.span("again")
    with span, span:
        pass
    with span:
        pass
    rows = recording.rows("SELECT parent IS NULL FROM spans ORDER BY t_ns")
    assert rows == [(True,), (False,), (True,)]


def test_a_span_decorates_coroutines_and_tasks_keep_their_own(record: Record) -> None:
    recording = record()

    @stethos.span("fetch")
    async def fetch(number: int) -> int:
        with stethos.span(f"part {number}"):
            await asyncio.sleep(0)
        return number

    async def main() -> list[int]:
        with stethos.span("all"):
            return await asyncio.gather(*(fetch(number) for number in range(3)))

    assert asyncio.iscoroutinefunction(fetch)
    assert asyncio.run(main()) == [0, 1, 2]
    by_id = {span: (name, parent) for name, _, _, span, parent, _, _ in recording.rows(SPANS)}
    for name, parent in by_id.values():
        if name.startswith("part"):
            assert by_id[parent][0] == "fetch"
        elif name == "fetch":
            assert by_id[parent][0] == "all"
    assert len(by_id) == 7 and len({parent for name, parent in by_id.values() if name.startswith("part")}) == 3


def test_a_coroutine_that_is_cancelled_ends_its_span(record: Record) -> None:
    recording = record()

    @stethos.span("wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert spans_of(recording)["wait"]["exception"].startswith("CancelledError")


def test_a_span_left_in_another_context_than_entered_does_not_raise(record: Record) -> None:
    """As happens when an asynchronous generator is closed by the event loop."""

    async def numbers() -> AsyncIterator[int]:
        with stethos.span("stream"):
            yield 1
            yield 2

    async def main() -> None:
        stream = numbers()
        assert await asyncio.create_task(anext(stream)) == 1
        await asyncio.create_task(stream.aclose())

    recording = record()
    asyncio.run(main())
    assert [row[0] for row in recording.rows(SPANS)] == ["stream"]


def test_threads_have_traces_of_their_own(record: Record) -> None:
    recording = record()

    def work() -> None:
        with stethos.span("outer"), stethos.span("inner"):
            pass

    with stethos.span("main"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recording.rows("SELECT count(*), count(DISTINCT trace) FROM spans") == [(9, 5)]


def test_any_field_name_may_be_used(record: Record) -> None:
    recording = record()
    with stethos.span("load", name="x", self=1, fields=2, session=3):
        pass
    assert json.loads(spans_of(recording)["load"]["fields"]) == {"name": "x", "self": 1, "fields": 2, "session": 3}


def test_without_a_recording_spans_only_run_the_work() -> None:
    @stethos.span("work")
    def work() -> int:
        with stethos.span("inner"):
            return 7

    assert work() == 7
    with pytest.raises(ZeroDivisionError), stethos.span("x"):
        raise ZeroDivisionError


def test_a_span_may_outlive_its_recording(record: Record) -> None:
    recording = record()
    with stethos.span("late"):
        recording.close()
    assert recording.rows(SPANS) == []


# Metrics ---------------------------------------------------------------------------------------------------


def metrics_of(recording: Recording) -> list[tuple[str, float]]:
    return recording.rows("SELECT name, value FROM metrics ORDER BY t_ns, name")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0), (0.5, 0.5), (True, 1.0), ("1.5", 1.5), (Decimal("0.75"), 0.75), (Fraction(1, 8), 0.125),
        (np.float32(0.25), 0.25), (np.int64(3), 3.0), (np.array(2.0), 2.0), (torch.tensor(1.5), 1.5),
        (torch.tensor([2.5], requires_grad=True), 2.5), (torch.tensor(3, dtype=torch.int8), 3.0),
        (torch.tensor(0.125, dtype=torch.bfloat16), 0.125),
    ],
    ids=repr,
)  # fmt: skip
def test_anything_that_is_a_number_can_be_logged(record: Record, value: Any, expected: float) -> None:
    recording = record()
    stethos.log(x=value)
    assert metrics_of(recording) == [("x", expected)]


def test_nan_and_infinities_stay_what_they_are(record: Record) -> None:
    recording = record()
    stethos.log(a=math.nan, b=math.inf, c=-math.inf)
    assert recording.rows("SELECT count(*), count(value), count(*) FILTER (isnan(value)) FROM metrics") == [(3, 3, 1)]
    assert recording.column("SELECT value FROM metrics WHERE isinf(value) ORDER BY value") == [-math.inf, math.inf]


def test_what_is_no_number_is_dropped_counted_and_noted_once(record: Record) -> None:
    class Moody:
        def __float__(self) -> float:
            raise RuntimeError("not today")

    recording = record()
    for _ in range(15):
        stethos.log(good=1.0, none=None, moody=Moody(), big=10**400)
    assert metrics_of(recording) == [("good", 1.0)] * 15
    gaps = recording.rows("SELECT what, reason FROM gaps ORDER BY reason")
    assert [(what, reason.split(":")[0]) for what, reason in gaps] == [
        ("metrics", name) for name in ("big", "moody", "none")
    ]
    summary = recording.close().summary()
    assert summary["drops"] == {"not_a_number": 45}
    assert summary["rows_produced"] == summary["rows_stored"] + summary["rows_dropped"] + summary["rows_lost"]


@pytest.mark.parametrize("step", ["three", 1.5, 2**70, object()], ids=["text", "float", "huge", "object"])
def test_a_step_that_is_no_number_drops_the_row_and_not_the_recording(record: Record, step: Any) -> None:
    recording = record()
    for _ in range(15):
        stethos.log(step=step, x=1.0)
    stethos.log(step=7, x=2.0)
    assert recording.rows("SELECT step, value FROM metrics") == [(7, 2.0)]
    assert len(recording.rows("SELECT * FROM gaps")) == 1


def test_a_metric_stands_at_the_step_it_was_logged(record: Record) -> None:
    recording = record()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        stethos.log(index=index)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    stethos.log(step=41, index=-1)
    assert recording.rows("SELECT step, value FROM metrics ORDER BY t_ns") == [(0, 0), (1, 1), (2, 2), (41, -1)]


def test_metrics_from_many_threads_all_arrive(record: Record) -> None:
    recording = record()

    def work(number: int) -> None:
        for index in range(500):
            stethos.log(**{f"thread {number}": index})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = recording.rows("SELECT name, count(*), count(DISTINCT value), sum(value) FROM metrics GROUP BY name")
    assert sorted(rows) == [(f"thread {number}", 500, 500, 499 * 250) for number in range(8)]


def test_names_may_hold_any_characters(record: Record) -> None:
    recording = record()
    names = ["a b", "loss/train", "ünï 日本", "quo'te\"", "a.b[0]", "; DROP TABLE metrics; --", "\t\n", "0"]
    for index, name in enumerate(names):
        stethos.log(**{name: index})
    stethos.log(**{"lone \ud800": 8})
    stethos.log(**{"x" * 1000: 9})
    rows = recording.rows("SELECT name, value FROM metrics ORDER BY value")
    assert [name for name, _ in rows[:8]] == names
    assert rows[8][0] == "lone ?"
    assert rows[9][0] == "x" * 300


def test_a_hundred_thousand_names_are_bounded(record: Record) -> None:
    recording = record()
    for index in range(100_000):
        stethos.log(**{f"n{index}": index})
        if index % 2000 == 0:
            recording.drain()
    (counts,) = recording.rows("SELECT count(*), count(DISTINCT name), count(DISTINCT value) FROM metrics")
    assert counts == (100_000, MOST_NAMES + 1, 100_000)
    assert recording.rows("SELECT min(value) FROM metrics WHERE name = '(more names)'") == [(MOST_NAMES,)]


def test_without_a_recording_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stethos.log(x=1, y="no number")
    assert boot.current() is None and list(tmp_path.iterdir()) == []


def test_before_and_after_a_recording_nothing_is_recorded(record: Record) -> None:
    stethos.log(x=1)
    recording = record()
    stethos.log(x=2)
    recording.watch.close()
    stethos.log(x=3)
    assert metrics_of(recording) == [("x", 2.0)]


# Where it goes ---------------------------------------------------------------------------------------------


def test_on_a_terminal_watch_says_the_runs_name_and_where_to_look(tmp_path: Path) -> None:
    program = "import stethos\nwith stethos.federation('f', name='night-1', progress=False): stethos.watch().close()"
    leader, follower = pty.openpty()
    for directory, stderr in (("seen", follower), ("unseen", subprocess.PIPE)):
        (tmp_path / directory).mkdir()
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=tmp_path / directory, env=environment(), stderr=stderr, check=True)
        assert not done.stderr
    os.close(follower)
    said = os.read(leader, 4096).decode()
    os.close(leader)
    assert said == "stethos: recording to runs/night-1; look: stethos diagnose -t night-1\r\n"
