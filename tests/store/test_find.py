"""From a target to a run directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder, dead_pid

from stethos.errors import RunNotFoundError
from stethos.live.registry import live_process, live_processes
from stethos.store.find import find_run, is_live, list_runs


def test_a_name_a_path_and_a_process_directory_all_mean_the_run(run: RunBuilder) -> None:
    process = run.process()
    assert find_run("demo").path == run.path
    assert find_run(str(run.path)).path == run.path
    assert find_run(str(process.place.path)).path == run.path


def test_dot_means_the_run_one_stands_in(run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    assert find_run(".").path.resolve() == run.path.resolve()


def test_without_a_target_the_newest_live_run_wins_over_a_newer_dead_one(runs_dir: Path) -> None:
    with (
        RunBuilder(runs_dir / "live", started_ns=T0_NS) as live,
        RunBuilder(runs_dir / "dead", started_ns=T0_NS + 1) as dead,
    ):
        live.process()
        dead.process(is_alive=False)
        assert find_run().name == "live"
        assert is_live(live.place) and not is_live(dead.place)


def test_without_a_live_run_the_newest_is_taken(runs_dir: Path) -> None:
    for index, name in enumerate(("b", "c", "a")):
        RunBuilder(runs_dir / name, started_ns=T0_NS + index).close()
    assert find_run().name == "a"
    assert [place.name for place in list_runs(runs_dir)] == ["a", "c", "b"]


def test_a_launcher_that_has_ended_keeps_no_run_alive(run: RunBuilder) -> None:
    run.launcher(dead_pid(), None)
    assert is_live(run.place)
    run.launcher(dead_pid(), 0)  # its pid is that of this process: as good as taken by somebody else
    assert not is_live(run.place)


def test_a_pid_is_found_among_the_runs(run: RunBuilder) -> None:
    process = run.process(is_alive=False)
    assert find_run(str(process.pid)).path == run.path


def test_a_pid_is_found_from_any_directory_through_the_registry(
    run: RunBuilder, own_registry: Path, tmp_path: Path
) -> None:
    process = run.process()
    own_registry.mkdir()
    (own_registry / str(os.getpid())).write_text(str(process.place.path))
    elsewhere = tmp_path / "elsewhere"
    assert find_run(str(os.getpid()), elsewhere).path == run.path


def test_a_live_run_elsewhere_is_taken_only_when_asked_for(tmp_path: Path, runs_dir: Path, own_registry: Path) -> None:
    with RunBuilder(tmp_path / "other" / "far", started_ns=T0_NS + 1) as far:
        process = far.process()
        own_registry.mkdir()
        (own_registry / str(os.getpid())).write_text(str(process.place.path))
        with pytest.raises(RunNotFoundError, match=f"no runs in .*\nhint: live in another directory: -t {far.path}"):
            find_run()
        assert find_run(anywhere=True).name == "far"
        with RunBuilder(runs_dir / "near", started_ns=T0_NS) as near:
            assert find_run().name == "near" and find_run(anywhere=True).name == "far"
            near.process()
            assert find_run(anywhere=True).name == "near"


def test_a_dead_run_elsewhere_is_no_default_target(tmp_path: Path, runs_dir: Path, own_registry: Path) -> None:
    """What a killed process left in the registry is not taken for the run one stands next to."""
    with RunBuilder(tmp_path / "other" / "far", started_ns=T0_NS + 1) as far:
        process = far.process(is_alive=False)
        own_registry.mkdir()
        (own_registry / str(process.pid)).write_text(str(process.place.path))
        with pytest.raises(RunNotFoundError, match="no runs in"):
            find_run()
        with RunBuilder(runs_dir / "near", started_ns=T0_NS):
            assert find_run().name == "near"


def test_a_registry_entry_that_points_to_another_process_is_not_believed(
    run: RunBuilder, own_registry: Path, tmp_path: Path
) -> None:
    process, stranger = run.process(), dead_pid()
    own_registry.mkdir()
    (own_registry / str(stranger)).write_text(str(process.place.path))
    with pytest.raises(RunNotFoundError):
        find_run(str(stranger), tmp_path / "elsewhere")


def test_an_unknown_name_gets_the_nearest_names(run: RunBuilder) -> None:
    with pytest.raises(RunNotFoundError, match=r"no run 'dmo'.*\nhint: did you mean demo\?"):
        find_run("dmo")


def test_no_runs_at_all_says_how_to_make_one(runs_dir: Path) -> None:
    with pytest.raises(RunNotFoundError, match=r"stethos run train\.py"):
        find_run()


def test_a_run_being_deleted_is_not_listed(run: RunBuilder, runs_dir: Path) -> None:
    run.path.rename(runs_dir / ".demo.deleted-1")
    assert list_runs(runs_dir) == []


@pytest.mark.parametrize("whose", ["directory", "entry", "link to the directory", "link to the entry"])
def test_a_registry_that_another_user_can_change_names_no_process(
    run: RunBuilder, own_registry: Path, tmp_path: Path, whose: str
) -> None:
    process = run.process()
    real = tmp_path / "real"
    real.mkdir()
    entry = real / str(os.getpid())
    entry.write_text(str(process.place.path))
    if whose == "link to the entry":
        own_registry.mkdir()
        (own_registry / entry.name).symlink_to(entry)
        os.chown(own_registry / entry.name, 12345, 12345, follow_symlinks=False)
    elif whose == "link to the directory":
        own_registry.symlink_to(real)
        os.chown(own_registry, 12345, 12345, follow_symlinks=False)
    else:
        real.rename(own_registry)
    elsewhere = tmp_path / "elsewhere"
    if not whose.startswith("link"):
        assert find_run(entry.name, elsewhere).path == run.path and live_process(os.getpid()) is not None
        os.chown(own_registry if whose == "directory" else own_registry / entry.name, 12345, 12345)
    assert live_process(os.getpid()) is None and live_processes() == []
    with pytest.raises(RunNotFoundError):
        find_run(entry.name, elsewhere)
