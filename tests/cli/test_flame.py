"""`stethos flame` on real processes whose hot function is known."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from builders import dead_pid
from processes import PROGRAMS, environment, start, wait_until

from stethos.cli.main import main
from stethos.export.flame import by_function, hottest, tree_of, write_page
from stethos.live.registry import live_processes

SCHEMA = json.loads((Path(__file__).parents[1] / "export" / "speedscope-schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def cooks(tmp_path: Path, own_registry: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two observed processes of one run, as two ranks would be."""
    program = "import stethos, runpy, sys\nwatch = stethos.watch(dir=sys.argv[1], name='kitchen')\nstethos.log(x=1.0)\n"
    started = [
        start("-c", f"{program}runpy.run_path({str(PROGRAMS / 'burn.py')!r})", tmp_path / "runs",
              env=environment(RANK=str(rank), WORLD_SIZE="2", XDG_RUNTIME_DIR=str(own_registry.parent)))
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == "cooking\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def page_data(path: Path) -> tuple[list[Any], list[Any]]:
    found = re.search(
        r'<script id="data" type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"), re.S
    )
    assert found is not None
    content = json.loads(found[1])
    return content["labels"], content["tree"]


def test_the_hot_function_of_each_rank_is_named(
    cooks: list[subprocess.Popen[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: len(live_processes()) == 2, "both processes in the registry")
    page = tmp_path / "flame.html"
    runs = str(tmp_path / "runs" / "kitchen")
    assert main(["flame", "-t", f"{runs}/all", "--seconds", "1", "--rate", "50", "-o", str(page), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    hottest_one = said["hottest"][0]
    assert hottest_one["function"] == "boil" and re.search(r"burn\.py:1[34]$", hottest_one["place"])  # the loop in it
    assert len(said["processes"]) == 2 and all(one["samples"] for one in said["processes"])
    labels, tree = page_data(page)
    assert {labels[child[0]][0] for child in tree[2]} == {"kitchen, rank 0", "kitchen, rank 1"}
    assert not [place for _, place in labels if "src/stethos/" in place]
    assert not [name for name, _ in labels if "stethos-agent" in name]
    scope = json.loads((tmp_path / "flame.speedscope.json").read_text(encoding="utf-8"))
    jsonschema.validate(scope, SCHEMA)
    assert [profile["name"] for profile in scope["profiles"]] == ["kitchen, rank 0", "kitchen, rank 1"]
    assert main(["flame", "-t", str(cooks[0].pid), "-o", str(page)]) == 2 and "exists" in capsys.readouterr().err


def test_who_cannot_be_sampled_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["-o", str(tmp_path / "flame.html")]
    assert main(["flame", "-t", str(dead_pid()), *output]) == 3 and "hint: " in capsys.readouterr().err
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert main(["flame", "-t", str(sleeper.pid), "--seconds", "1", *output]) == 6
        error = capsys.readouterr().err
        assert f"cannot sample process {sleeper.pid}" in error and "is it a Python process" in error
    finally:
        sleeper.kill()
        sleeper.wait()
    for wrong in (["--seconds", "0"], ["--rate", "0"]):
        assert main(["flame", "-t", str(dead_pid()), *wrong, *output]) == 2
    assert list(tmp_path.iterdir()) == []


def test_names_are_text_in_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>&\x1b"
    write_page({((evil, evil), ("b", "")): 3, (("c", ""),): 1}, tmp_path / "flame.html", evil, evil)
    text = (tmp_path / "flame.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and text.count("</script>") == 2 and "\x1b" not in text
    assert not re.search(r"https?://|src=|@import|url\(", text)
    labels, tree = page_data(tmp_path / "flame.html")
    assert [evil.replace("\x1b", "\ufffd")] * 2 in labels and tree[1] == 4


def test_stacks_become_a_tree_with_shares() -> None:
    stacks = {(("a", ""), ("b", "")): 3, (("a", ""),): 1}
    root = tree_of(stacks)
    assert (root.count, root.children["a", ""].count, root.children["a", ""].children["b", ""].count) == (4, 4, 3)
    assert hottest(stacks) == [(("b", ""), 0.75), (("a", ""), 0.25)] and hottest({}) == []


def test_lines_of_a_function_are_one_bar_and_the_hot_one_is_named() -> None:
    main, step = ("<module>", "a:b.py:1"), ("step", "a:b.py:20")
    stacks = {
        (main,): 1,
        (("<module>", "a:b.py:9"),): 5,
        (("<module>", "a:b.py:4"), step): 3,
        (("native", "libx.so"),): 1,
    }
    assert hottest(stacks) == [(("<module>", "a:b.py:9"), 0.6), (step, 0.3), (("native", "libx.so"), 0.1)]
    assert by_function(stacks) == {(main,): 6, (main, step): 3, (("native", "libx.so"),): 1}
