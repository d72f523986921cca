"""Captures made to mislead, read by what all that repeats a federation reads them with; many in a second."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack.outcome import Outcome, copy_run, in_child, place
from attack.reading import SLOWEST_S, own_home, prepared
from attack.strangers import state_of, tamper
from attack.tampered_tables import make_bombs
from stethos.errors import StethosError
from stethos.lab.spec import choices_in
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.history import recorded_rounds
from stethos.replay.tensorfile import ITEM_BYTES

BATCH = 100


def attack(tries: int, seed: int = 1) -> Outcome:
    outcome = Outcome(
        "a stranger's capture, read as a whole",
        "nothing is written, made or deleted; only our own errors; <= 10 s of CPU, <= 1 GB",
    )
    chance = random.Random(seed)
    with place() as base, own_home(base):
        clean = prepared(base, is_long=tries >= BATCH)
        make_bombs(base / "bombs", size=32 << 20 if tries >= BATCH else 1 << 20)
        while outcome.tries < tries:
            size, number = min(BATCH, tries - outcome.tries), chance.randrange(2**60)
            in_child(outcome, f"batch {number}", lambda n=number, s=size: _batch(clean, base / f"c{n}", n, s), 600)  # type: ignore[misc]
            shutil.rmtree(base / f"c{number}", ignore_errors=True)
            outcome.tries += size
    return outcome


def _batch(clean: Path, base: Path, seed: int, size: int) -> list[str]:
    import torch

    torch.set_num_threads(1)
    chance = random.Random(seed)
    failures = []
    for turn in range(size):
        run, victim = base / str(turn) / "run", base / str(turn) / "victim"
        copy_run(clean / "capture", run / "capture")
        victim.mkdir()
        (victim / "bashrc").write_text("mine", encoding="utf-8")
        (victim / "ring").write_text("mine", encoding="utf-8")
        odd = [tamper(run, victim, chance) for _ in range(chance.randint(0, 2))]
        odd += [_tensors(run, chance) for _ in range(chance.randint(0, 2))]
        before, began = state_of(base / str(turn)), time.process_time()
        what = ", ".join(odd)
        failures += [f"{what}: {wrong}" for wrong in _read(run)]
        if time.process_time() - began > SLOWEST_S:
            failures.append(f"{what}: {time.process_time() - began:.0f} s")
        if state_of(base / str(turn)) != before:
            failures.append(f"{what}: something was changed")
        shutil.rmtree(base / str(turn))
    return failures


def _tensors(run: Path, chance: random.Random) -> str:
    """An object with a header that says anything, rightly named, in the place of a state."""
    rounds = [
        path
        for path in sorted(run.glob("capture/000/rounds/*.json"))
        if path.is_file() and path.stat().st_size < 1 << 20
    ]
    objects = run / "capture" / "000" / "objects"
    if not rounds or not objects.is_dir() or objects.is_symlink():
        return "nothing"
    dtype = chance.choice([*ITEM_BYTES, "F4", None, []])
    shape = chance.choice([[], [0], [3], [2, 2], [-1], [2**40, 2**40], [1] * 70, ["x"], None, [2.5], [True]])
    count = chance.choice([0, 1, 3, 4, 10**9])
    names = chance.choice([["0.weight"], ["numpy.key", "python.gauss", "numpy.rest"], ["python.numbers"], ["a", "b"]])
    size = ITEM_BYTES.get(dtype, 1) * min(count, 100) if isinstance(dtype, str) else 0
    header: dict[str, Any] = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": chance.choice([[0, size], [size, 0], [0], [0, 10**9]])}
        for name in names
    }
    if chance.random() < 0.3:
        odd = [None, [], {"format": "stethos-packed-1"}, {"a": 7}]
        header["__metadata__"] = chance.choice(odd)
    text = json.dumps(header).encode()
    file = chance.choice([len(text), len(text), len(text), 2**40]).to_bytes(8, "little") + text + bytes(size)
    digest = hashlib.sha256(file).hexdigest()
    (objects / f"{digest}{chance.choice(['.safetensors', '.packed'])}").write_bytes(file)
    path = chance.choice(rounds)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        turns = [one for one in content.get("clients", []) if isinstance(one, dict)]
    except (ValueError, AttributeError, TypeError, RecursionError, OSError):
        return "nothing"
    holder, names = (chance.choice(turns), ["state", "random"]) if turns else (content, [])
    if chance.random() < 0.4:
        holder, names = content, ["before", "after", "server"]
    holder[chance.choice(names or ["before"])] = {"parts": [digest]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"tensors {dtype} {shape} in {path.name}"


def _read(run: Path) -> list[str]:
    """Everything there is; what came out that is not ours."""
    wrong: list[str] = []

    def attempt(what: str, action: Callable[[], object]) -> Any:
        try:
            return action()
        except StethosError:
            return None
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
            wrong.append(f"{what}: {error!r:.200} at {where}")
            return None

    bundle: Bundle | None = attempt("open", lambda: open_bundle(run))
    if bundle is None:
        return wrong
    settings = attempt("settings", lambda: bundle.settings)
    if isinstance(settings, dict) and isinstance(settings.get("lab"), dict):
        attempt("lab", lambda: choices_in(settings["lab"]))
    attempt("dropped", lambda: bundle.dropped)
    for number in attempt("rounds", lambda: bundle.rounds) or ():
        attempt("corrections", lambda n=number: bundle.corrections(n))  # type: ignore[misc]
        attempt("server", lambda n=number: bundle.server_state(n))  # type: ignore[misc]
        attempt("before", lambda n=number: bundle.global_state(n, "before"))  # type: ignore[misc]
        attempt("after", lambda n=number: bundle.global_state(n, "after"))  # type: ignore[misc]
        attempt("kept", lambda n=number: bundle.kept(n))  # type: ignore[misc]
        for client in attempt("clients", lambda n=number: bundle.clients(n)) or ():  # type: ignore[misc]
            attempt("update", lambda n=number, c=client: _used(bundle.update(n, c)))  # type: ignore[misc]
            attempt("random", lambda n=number, c=client: bundle.random_states(n, c))  # type: ignore[misc]
    attempt("recorded", lambda: recorded_rounds(bundle))
    return wrong


def _used(update: Any) -> None:
    """What everybody does with an update: numbers are numbers."""
    for value in (update.samples, update.weight, update.loss, update.base_round, *(update.losses or ())):
        assert value is None or isinstance(value, (int, float)), value
    assert isinstance(update.metrics, dict)
