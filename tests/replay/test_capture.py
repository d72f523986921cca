"""Captures of federations: every state as it was, once; bounded, crash-safe, and nothing of the training changed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_loop
import pytest
import torch
from processes import command, start, wait_until
from torch import nn

import stethos
from stethos import lab
from stethos.cli.main import main
from stethos.errors import CaptureError, UsageError
from stethos.record.place import RunPlace, host_key
from stethos.record.spawn import take_lock
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.pack import pack_round
from stethos.replay.writer import Piece, Writer

State = dict[str, torch.Tensor]


def play(
    directory: Path, rounds: int = 4, size: int = 8, **options: Any
) -> tuple[Path, list[tuple[State, dict[str, State], State]]]:
    """A federation whose updates are noise, and copies of everything that happened; one layer never changes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(size, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    truth = []
    with stethos.federation("noise", model=model, dir=directory, run="noise", progress=False, **options) as fed:
        for rnd in fed.rounds(rounds):
            before = {name: value.clone() for name, value in model.state_dict().items()}
            sent: dict[str, State] = {}
            scratch = {name: value.clone() for name, value in before.items()}
            for client in "abcde":
                with rnd.client(client) as site:
                    for name, value in scratch.items():  # the same memory for every client, as programs do
                        if name != "2.weight" and value.is_floating_point():
                            value.copy_(before[name] + 0.01 * torch.randn(value.shape) * (40 if client == "e" else 1))
                    site.update(scratch, samples=10, loss=torch.tensor(0.5), weight=0.2)
                    sent[client] = {name: value.clone() for name, value in scratch.items()}
            model.load_state_dict(own_loop.average(before, list(sent.values()), []))
            rnd.evaluate(accuracy=0.5)
            truth.append((before, sent, {name: value.clone() for name, value in model.state_dict().items()}))
    assert fed.path is not None
    return fed.path, truth


@contextlib.contextmanager
def undrained(path: Path) -> Iterator[None]:
    """A run without a drainer, so that nobody packs its captures while the test looks at their files."""
    place = RunPlace(path)
    place.create({"run": path.name, "command": ["pytest"], "started_ns": time.time_ns(), "limit_bytes": 1 << 30})
    lock = take_lock(place.drainer_lock(host_key()))
    assert lock is not None
    try:
        yield
    finally:
        os.close(lock)


def are_equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def check_rounds(bundle: Bundle, truth: list[tuple[State, dict[str, State], State]]) -> None:
    for number in bundle.rounds:
        before, sent, after = truth[number - 1]
        assert are_equal(bundle.global_state(number), before)
        assert are_equal(bundle.global_state(number, "after"), after)
        for client in bundle.kept(number):
            assert are_equal(bundle.update(number, client).state, sent[client])


def test_all_keeps_every_state_as_it_was(tmp_path: Path) -> None:
    path, truth = play(tmp_path, capture="all", config={"lr": 0.1})
    bundle = open_bundle(path)
    assert bundle.rounds == (1, 2, 3, 4) and bundle.is_finished
    check_rounds(bundle, truth)
    assert bundle.clients(2) == bundle.kept(2) == ("a", "b", "c", "d", "e")
    update = bundle.update(2, "b")
    assert (update.samples, update.loss, update.weight) == (10, 0.5, 0.2)
    assert set(bundle.random_states(2, "b")) >= {"torch", "numpy", "python"}
    assert bundle.settings["config"] == {"lr": 0.1} and bundle.settings["torch"] == torch.__version__
    assert bundle.manifest(2)["evaluation"] == {"accuracy": 0.5}


def test_packed_and_read_again_nothing_has_changed(tmp_path: Path) -> None:
    with undrained(tmp_path / "noise"):
        path, truth = play(tmp_path, rounds=5, size=600, capture="all")
    bundle = open_bundle(path)
    raw_bytes = sum(file.stat().st_size for file in bundle.place.objects.iterdir())
    for number in bundle.rounds:
        pack_round(bundle.place, number, is_last=number == 5)
    packed = list(bundle.place.objects.glob("*.packed"))
    assert len(packed) > 20 and sum(file.stat().st_size for file in bundle.place.objects.iterdir()) < 0.9 * raw_bytes
    check_rounds(open_bundle(path), truth)


def test_an_unchanged_layer_is_stored_once(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big = nn.Linear(300, 300)
            self.head = nn.Linear(300, 2)

    model = Frozen()
    options: dict[str, Any] = {"dir": tmp_path, "run": "f", "progress": False, "capture": "all"}
    with undrained(tmp_path / "f"), stethos.federation("frozen", model=model, **options) as fed:
        for rnd in fed.rounds(3):
            for client in "ab":
                with rnd.client(client) as site:
                    state = {name: value.clone() for name, value in model.state_dict().items()}
                    state["head.bias"] += 1
                    site.update(state, samples=1)
            model.load_state_dict(state)
    assert fed.path is not None
    large = [file for file in open_bundle(fed.path).place.objects.iterdir() if file.stat().st_size > 300 * 300 * 4]
    assert len(large) == 1


def test_suspects_keeps_the_odd_and_a_sample_of_the_others(tmp_path: Path) -> None:
    path, truth = play(tmp_path, capture="suspects")
    bundle = open_bundle(path)
    check_rounds(bundle, truth)
    for number in bundle.rounds:
        assert "e" in bundle.manifest(number)["suspects"] and "e" in bundle.kept(number)
        assert 2 <= len(bundle.kept(number)) < 5 and len(bundle.clients(number)) == 5
    gone = next(client for client in "abcd" if client not in bundle.kept(1))
    with pytest.raises(CaptureError, match=f"client '{gone}' in round 1 was not kept: .*suspects"):
        bundle.update(1, gone)


def test_rounds_keeps_no_updates_and_says_so(tmp_path: Path) -> None:
    path, truth = play(tmp_path, capture="rounds")
    bundle = open_bundle(path)
    check_rounds(bundle, truth)
    with pytest.raises(CaptureError, match="capture='rounds' keeps none"):
        bundle.update(1, "a")


def test_the_oldest_rounds_are_dropped_first_and_it_is_said(tmp_path: Path) -> None:
    with undrained(tmp_path / "noise"):
        path, truth = play(tmp_path, rounds=12, capture="rounds", capture_bytes=12_000)
    bundle = open_bundle(path)
    assert bundle.rounds == tuple(range(bundle.rounds[0], 13)) and bundle.rounds[0] > 2
    assert sum(file.stat().st_size for file in bundle.place.objects.iterdir()) <= 12_000
    check_rounds(bundle, truth)
    with pytest.raises(CaptureError, match="round 2 was dropped to stay within capture_bytes"):
        bundle.global_state(2)


def test_without_a_limit_that_holds_one_round_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = play(tmp_path, capture="all", capture_bytes=100)
    bundle = open_bundle(path)
    assert bundle.rounds == ()
    with pytest.raises(CaptureError, match="round 2 was dropped: one round is larger than capture_bytes"):
        bundle.global_state(2)
    assert main(["replay", "-t", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "no round is kept" in shown and "dropped: one round is larger" in shown and "a larger capture_bytes" in shown


def test_dropping_rounds_keeps_what_packed_ones_are_built_on(tmp_path: Path) -> None:
    """A model that comes back, as after a rollback, is packed against one that may be dropped."""
    with undrained(tmp_path / "noise"):
        path, truth = play(tmp_path, rounds=6, capture="rounds")
    bundle = open_bundle(path)
    for number in bundle.rounds:
        pack_round(bundle.place, number, is_last=number == 6)
    writer = Writer(bundle.place, limit_bytes=1)
    writer._size = 1 << 30
    sizes = writer._sizes()
    writer._drop(1, [2, 3, 4, 5, 6], sizes)
    writer._drop(2, [3, 4, 5, 6], sizes)
    writer.close(10)
    fresh = open_bundle(path)
    assert fresh.rounds == (3, 4, 5, 6)
    check_rounds(fresh, truth)


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    plain = own_loop.federate(tmp_path, "plain")
    with_it = own_loop.federate(tmp_path, "with", capture="all")
    sums = [
        stethos.open_run(path).rows("SELECT loss, accuracy, global_norm FROM rounds ORDER BY round").values
        for path in (plain, with_it)
    ]
    assert sums[0] == sums[1]


def test_the_lab_gives_the_same_bits_with_and_without(tmp_path: Path) -> None:
    plain = lab.federate("digits", rounds=2, clients=3, observe=False)
    captured = lab.federate("digits", rounds=2, clients=3, capture="all", dir=tmp_path, run="l", progress=False)
    assert are_equal(plain.state, captured.state)
    assert captured.path is not None and are_equal(open_bundle(captured.path).global_state(2, "after"), captured.state)


def test_what_does_not_fit_into_memory_is_dropped_counted_and_named(tmp_path: Path) -> None:
    path, _ = play(tmp_path, capture="rounds")
    place = open_bundle(path).place
    writer = Writer(place, 1 << 30, waiting_bytes=1000)
    writer._wake.clear()
    first, second = (Piece(files=[torch.zeros(900, dtype=torch.uint8).numpy() + number]) for number in (0, 1))
    assert writer.put(first) and not writer.put(second)
    assert second.missing == "too much was waiting to be written" and writer.dropped == {second.missing: 1}
    assert writer.flush(10) and first.parts and not first.missing
    assert writer.put(Piece(files=[torch.zeros(900, dtype=torch.uint8).numpy()]))  # there is room again
    assert writer.close(10)


def test_a_state_that_cannot_be_captured_is_named_and_the_training_goes_on(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with stethos.federation("odd", model=model, dir=tmp_path, run="odd", progress=False, capture="all") as fed:
        for rnd in fed.rounds(1):
            with rnd.client("a") as site:
                plain = {name: value for name, value in model.state_dict().items() if name != "phase"}
                site.update(plain, samples=1)
    assert fed.path is not None
    bundle = open_bundle(fed.path)
    assert bundle.kept(1) == ("a",)
    with pytest.raises(CaptureError, match=r"the global model after round 1 was not kept: .*complex64"):
        bundle.global_state(1, "after")
    assert any("complex64" in reason for reason in bundle.dropped["states"])


def test_changes_and_plain_arrays_become_states(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    with stethos.federation("forms", model=model, dir=tmp_path, run="forms", progress=False, capture="all") as fed:
        for rnd in fed.rounds(1):
            with rnd.client("delta") as site:
                site.update({name: torch.ones_like(value) for name, value in start.items()}, samples=1, delta=True)
            with rnd.client("arrays") as site:
                site.update([value.numpy() + 1 for value in start.values()], samples=1)
    assert fed.path is not None
    bundle = open_bundle(fed.path)
    for client in ("delta", "arrays"):
        assert are_equal(bundle.update(1, client).state, {name: value + 1 for name, value in start.items()})


def test_two_federations_of_a_run_have_captures_of_their_own(tmp_path: Path) -> None:
    with stethos.watch(dir=tmp_path, name="both"):
        for name, width in (("first", 2), ("second", 3)):
            with stethos.federation(name, model=nn.Linear(width, 1), progress=False, capture="rounds") as fed:
                for _ in fed.rounds(1):
                    pass
    path = tmp_path / "both"
    assert open_bundle(path).global_state(1)["weight"].shape == (1, 3)
    assert open_bundle(path, "first").global_state(1)["weight"].shape == (1, 2)
    with pytest.raises(CaptureError, match="no capture of federation 'third'"):
        open_bundle(path, "third")


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown capture 'everything'"):
        stethos.federation("x", dir=tmp_path, capture="everything")  # type: ignore[arg-type]


def test_whole_rounds_survive_a_kill(tmp_path: Path) -> None:
    process = start(own_loop.__file__, tmp_path, "killed", "--wait", env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert process.stdin is not None and process.stdout is not None
    for _ in range(3):
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
    wait_until(lambda: (tmp_path / "killed" / "capture" / "000" / "rounds" / "000002.json").exists(), "two rounds")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
    bundle = open_bundle(tmp_path / "killed")
    assert bundle.rounds[:2] == (1, 2) and not bundle.is_finished
    for number in bundle.rounds:
        bundle.global_state(number, "after")
        assert all(bundle.update(number, client).samples == 48 for client in bundle.clients(number))
    with pytest.raises(CaptureError, match="round 9 was not captured"):
        bundle.global_state(9)


def test_stethos_run_captures_a_loop_that_asks_for_nothing(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(own_loop.__file__).parent)!r})\n"
        "import own_loop\nown_loop.federate('runs', 'ignored', 1)\n"
    )
    result = command("run", "--dir", tmp_path, "--name", "ran", "--capture", "rounds", "--quiet", script)
    assert result.returncode == 0, result.stderr
    assert open_bundle(tmp_path / "ran").rounds == (1,)
    wrong = command("run", "--dir", tmp_path, "--capture", "much", script)
    assert wrong.returncode == 2 and "choose one of rounds, suspects, all" in wrong.stderr


def test_on_a_full_disk_training_goes_on_and_what_is_missing_is_named(tmp_path: Path) -> None:
    model = nn.Linear(100, 100)
    options: dict[str, Any] = {"dir": tmp_path, "run": "full", "progress": False, "capture": "all"}
    with undrained(tmp_path / "full"), stethos.federation("full", model=model, **options) as fed:
        assert fed.capture is not None
        objects = fed.capture.place.objects
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", objects], check=True)
        try:
            for rnd in fed.rounds(6):
                with rnd.client("a") as site:
                    site.update({name: torch.randn(value.shape) for name, value in model.state_dict().items()})
                model.load_state_dict({name: torch.randn(value.shape) for name, value in model.state_dict().items()})
            assert fed.capture.flush()
            bundle = open_bundle(tmp_path / "full")
            assert bundle.rounds == (1, 2, 3, 4, 5, 6)
            assert bundle.global_state(1).keys() == {"weight", "bias"}
            missing = []
            for number in bundle.rounds:
                try:
                    bundle.global_state(number, "after")
                except CaptureError as error:
                    missing.append(error.message)
            assert missing and all("could not be written: No space left on device" in text for text in missing)
            assert sum(bundle.dropped["states"].values()) >= len(missing)
        finally:
            subprocess.run(["umount", "-l", objects], check=True)
