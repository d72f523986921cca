"""Captures that were damaged or forged: an error that says which and why; nothing is executed or read elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethos.errors import CaptureError, RunNotFoundError
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.codec import pack
from stethos.replay.pack import pack_round
from stethos.replay.tensorfile import parse, shape_of_file


@pytest.fixture
def copy(own_path: Path, tmp_path: Path) -> Bundle:
    """A capture to damage."""
    shutil.copytree(own_path / "capture", tmp_path / "run" / "capture")
    return open_bundle(tmp_path / "run")


@pytest.fixture
def large(lab_path: Path, tmp_path: Path) -> Bundle:
    """One whose objects are large enough to be packed; the drainer may have done so."""
    shutil.copytree(lab_path / "capture", tmp_path / "run" / "capture")
    return open_bundle(tmp_path / "run")


def rewrite(bundle: Bundle, number: int, change: Any) -> None:
    path = bundle.place.round_file(number)
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def first_object(bundle: Bundle) -> Path:
    return bundle.place.raw(bundle.manifest(1)["before"]["parts"][0])


def test_what_is_not_there_is_named(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(RunNotFoundError):
        open_bundle(tmp_path / "nowhere")
    with pytest.raises(CaptureError, match="has no captures"):
        open_bundle(tmp_path)
    with pytest.raises(CaptureError, match="round 99 was not captured") as error:
        bundle.global_state(99)
    assert "rounds 1 to 8" in error.value.hint
    with pytest.raises(CaptureError, match="client 'c99' took no part in round 1"):
        bundle.update(1, "c99")


def test_a_flipped_bit_is_found(copy: Bundle) -> None:
    path = first_object(copy)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=r"the global model before round 1 cannot be read: object .* is damaged"):
        copy.global_state(1)
    assert open_bundle(copy.place.path).global_state(3)  # the others are whole


def test_a_flipped_bit_in_a_packed_file_is_found(large: Bundle) -> None:
    pack_round(large.place, 1)
    path = large.place.packed(large.manifest(1)["before"]["parts"][0])
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CaptureError, match="before round 1 cannot be read"):
        open_bundle(large.place.path).global_state(1)


def test_a_torn_or_missing_file_is_named(copy: Bundle) -> None:
    path = first_object(copy)
    os.truncate(path, 100)
    with pytest.raises(CaptureError, match="is damaged"):
        copy.global_state(1)
    path.unlink()
    with pytest.raises(CaptureError, match="is missing"):
        open_bundle(copy.place.path).global_state(1)


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "", "a" * 64 + "/x", 7, None, ["x"]])
def test_no_name_leads_outside(copy: Bundle, name: object) -> None:
    rewrite(copy, 1, lambda manifest: manifest["before"].update(parts=[name]))
    with pytest.raises(CaptureError):
        open_bundle(copy.place.path).global_state(1)


@pytest.mark.parametrize("told", [{"accuracy": "0.9", "loss": 1.5}, ["loss"], "loss", 3, None])
def test_an_evaluation_is_numbers(copy: Bundle, told: object) -> None:
    number = copy.rounds[-1]
    rewrite(copy, number, lambda manifest: manifest.update(evaluation=told))
    found = open_bundle(copy.place.path).manifest(number)["evaluation"]
    assert found == ({"loss": 1.5} if isinstance(told, dict) else {})


def test_links_and_pipes_are_not_followed(copy: Bundle, tmp_path: Path) -> None:
    path = first_object(copy)
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CaptureError):
        copy.global_state(1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CaptureError, match="not a regular file"):
        open_bundle(copy.place.path).global_state(1)


def test_objects_built_on_themselves_are_refused(large: Bundle) -> None:
    digest = large.manifest(1)["before"]["parts"][0]
    file = large.file(digest)
    packed = np.frombuffer(pack(file, [(digest, file)]) or b"", np.uint8)
    large.place.packed(digest).write_bytes(packed.tobytes())
    large.place.raw(digest).unlink(missing_ok=True)
    with pytest.raises(CaptureError, match="built on itself"):
        open_bundle(large.place.path).global_state(1)


def test_a_bomb_is_refused_before_it_goes_off(large: Bundle) -> None:
    digest = large.manifest(1)["before"]["parts"][0]
    packed = np.frombuffer(pack(large.file(digest)) or b"", np.uint8)
    entries, metadata = parse(packed)
    payload = packed[entries["payload"].start : entries["payload"].end]
    forged = shape_of_file({"payload": payload}, {**metadata, "bytes": str(1 << 55)}).file_of([payload])
    large.place.packed(digest).write_bytes(forged.tobytes())
    large.place.raw(digest).unlink(missing_ok=True)
    with pytest.raises(CaptureError, match="cannot be read"):
        open_bundle(large.place.path).global_state(1)


def test_a_small_file_with_a_large_hole_is_refused_unread(large: Bundle) -> None:
    """A terabyte is too large; a few gigabytes of nothing took as much memory and half a minute."""
    digest = large.manifest(1)["before"]["parts"][0]
    for path in (large.place.raw(digest), large.place.packed(digest)):
        path.unlink(missing_ok=True)
    os.truncate(os.open(large.place.raw(digest), os.O_CREAT | os.O_WRONLY), 4 << 30)
    with pytest.raises(CaptureError, match="nearly all hole"):
        open_bundle(large.place.path).global_state(1)


def test_an_object_that_is_listed_twice_is_refused(copy: Bundle) -> None:
    rewrite(copy, 1, lambda manifest: manifest["before"].update(parts=manifest["before"]["parts"] * 2))
    with pytest.raises(CaptureError, match="an object is listed twice"):
        open_bundle(copy.place.path).global_state(1)


def test_objects_that_unfold_together_are_held_to_what_one_may(large: Bundle) -> None:
    """Each is small, and within the limit when it is read: two hundred of them took all the memory there was."""
    root = np.zeros(90 << 20, np.uint8)
    parts = []
    for number in range(4):
        root[number] = 1
        file = shape_of_file({f"w{number % 2}": root}).file_of([root])
        digest = hashlib.sha256(file.data).hexdigest()
        large.place.packed(digest).write_bytes(pack(file) or b"")
        parts.append(digest)
        assert large.place.packed(digest).stat().st_size < 64 << 10
    rewrite(large, 1, lambda manifest: manifest.update(before={"parts": parts}))
    with pytest.raises(CaptureError, match="unfold to much more"):
        open_bundle(large.place.path).global_state(1)
    rewrite(large, 1, lambda manifest: manifest.update(before={"parts": parts[:2]}))
    assert set(open_bundle(large.place.path).global_state(1)) == {"w0", "w1"}


def test_a_manifest_of_too_many_values_is_refused_unread(copy: Bundle) -> None:
    copy.place.round_file(1).write_bytes(b'{"clients": [], "x": [' + b"[]," * 5_000_000 + b"[]]}")
    with pytest.raises(CaptureError, match="holds more than 5,000,000 values"):
        open_bundle(copy.place.path).global_state(1)


class Trap:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_nothing_of_a_capture_is_executed(copy: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps(Trap())
    for path in [*copy.place.objects.iterdir(), *(copy.place.path / "rounds").iterdir(), copy.place.settings]:
        path.write_bytes(evil)
    fresh = open_bundle(copy.place.path)
    for call in (lambda: fresh.settings, lambda: fresh.manifest(1), lambda: fresh.global_state(1)):
        with pytest.raises(CaptureError):
            call()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {},
        {"clients": 3},
        {"clients": [{}]},
        {"clients": [], "before": {"parts": 7}},
        {"clients": [], "before": "x"},
    ],
)
def test_a_manifest_of_another_shape_is_refused(copy: Bundle, manifest: object) -> None:
    copy.place.round_file(1).write_text(json.dumps(manifest))
    with pytest.raises(CaptureError):
        open_bundle(copy.place.path).global_state(1)
