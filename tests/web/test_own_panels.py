"""Panels and views of the user's own: files that are read, what the page saves, and what is wrong with them."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stethos.errors import UsageError
from stethos.web.own_panels import FILE, OwnPanel, OwnPanels, OwnView, read_own, toml_of

PANEL = {"title": "Loss", "sql": "SELECT step, loss FROM steps", "chart": "line", "x": "step", "y": "loss"}


def test_both_files_are_read_and_the_page_writes_its_own(tmp_path: Path) -> None:
    mine = tmp_path / "repository.toml"
    mine.write_text(toml_of([OwnPanel("Mine", "SELECT 1")], [OwnView("Runs", "#/runs")]))
    before = mine.read_bytes()
    own = OwnPanels(tmp_path, mine)
    own.change({"panel": PANEL})
    told = own.change({"view": {"name": "Here", "address": "#/run/a/metrics?like=x"}})
    assert [(one["title"], one["is_saved_here"]) for one in told["panels"]] == [("Mine", False), ("Loss", True)]
    assert [one["name"] for one in told["views"]] == ["Runs", "Here"] and told["errors"] == []
    assert mine.read_bytes() == before
    own.change({"panel": {**PANEL, "chart": "bars"}})
    assert read_own(tmp_path / FILE).panels == (OwnPanel(**{**PANEL, "chart": "bars"}),)  # type: ignore[arg-type]
    told = own.change({"remove": "Loss"})
    assert [one["title"] for one in told["panels"]] == ["Mine"]


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\x7f", "é🦊", "'''", "\x01", "#", "a\r\nb"])
def test_any_text_survives_the_file(tmp_path: Path, text: str) -> None:
    panel = OwnPanel(f"t{text}", f"SELECT '{text}'", note=text)
    (tmp_path / FILE).write_bytes(toml_of([panel], []).encode())
    assert read_own(tmp_path / FILE).panels == (panel,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[panel]]\ntitle = "a"\n', "sql is missing"),
        ('[[panel]]\ntitle = "a"\nsql = 3\n', "sql is not a text"),
        ('[[panel]]\ntitle = "a"\nsql = "x"\nchart = "pie"\n', "chart is 'pie'"),
        ('[[panel]]\ntitle = "a"\nsql = "x"\ncolour = "red"\n', "no such field: 'colour'"),
        ('[[view]]\nname = "a"\naddress = "javascript:alert(1)"\n', "none of the page"),
        ('panel = "x"\n', "not a list of tables"),
        ("panel = [1]\n", "it is not a table"),
        ("[[panel", "cannot be read"),
        ("a." * 400_000 + "panel = 1", "more than 100 parts"),
    ],
)
def test_a_wrong_entry_is_an_error_of_its_own(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(
        text
        + (
            ""
            if "panel =" in text or "[[" not in text or text == "[[panel"
            else toml_of([OwnPanel("ok", "SELECT 1")], [])
        )
    )
    found = read_own(tmp_path / FILE)
    assert len(found.errors) == 1 and said in found.errors[0]
    assert len(found.panels) == int("[[panel]]" in text or "[[view]]" in text)


def test_files_that_are_none_are_empty_or_an_error(tmp_path: Path) -> None:
    assert read_own(tmp_path / "no.toml").errors == ()
    for content in (b"\xff\xfe", b"x" * (2 << 20), b"\0"):
        (tmp_path / FILE).write_bytes(content)
        assert len(read_own(tmp_path / FILE).errors) == 1
        with pytest.raises(UsageError, match="has an error"):
            OwnPanels(tmp_path, None).change({"panel": PANEL})
        assert (tmp_path / FILE).read_bytes() == content


@pytest.mark.parametrize(
    "request_", [{}, {"panel": {}}, {"panel": 3}, {"view": {"name": "x", "address": "http://x"}}, {"remove": 3}]
)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, request_: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        OwnPanels(tmp_path, None).change(request_)
    assert not (tmp_path / FILE).exists()


def test_two_tabs_that_save_at_once_both_keep_theirs(tmp_path: Path) -> None:
    own = OwnPanels(tmp_path, None)

    def save(number: int) -> None:
        own.change({"panel": {**PANEL, "title": f"panel {number}"}})

    tabs = [threading.Thread(target=save, args=(number,)) for number in range(12)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    assert len(tomllib.loads((tmp_path / FILE).read_text())["panel"]) == 12
