"""What a notebook shows, and the names a notebook needs."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from builders import RunBuilder

import stethos
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.errors import UsageError
from stethos.store.html import table_html

MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def trained(run: RunBuilder) -> RunBuilder:
    process = run.process()
    process.steps(30, losses=[1.0 / (step + 1) for step in range(30)])
    process.metric("accuracy", 0.5)
    process.metric("accuracy", 0.75)
    process.finish()
    return run


def test_runs_diagnoses_profiles_and_pairs_show_themselves(trained: RunBuilder) -> None:
    found = stethos.runs(trained.path.parent)
    assert [one.name for one in found] == [trained.path.name] and isinstance(found[0], stethos.Run)
    diagnosis = stethos.diagnose(found[0])
    assert isinstance(diagnosis, stethos.Diagnosis)
    pairs = stethos.compare(trained.path, found[0])
    shown = [one._repr_html_() for one in (found, found[0], diagnosis, stethos.profile(found[0]), pairs)]
    assert all("<" in text for text in shown) and all(trained.path.name in text for text in (*shown[:2], *shown[3:]))
    assert "<td" in shown[0] and "steps 30" in shown[1]
    with pytest.raises(UsageError, match="one run alone"):
        stethos.compare(trained.path)


def test_a_finding_shows_itself_as_a_table() -> None:
    subject = Subject(clients=("c5", "<c6>"), first=3)
    evidence = (Evidence("cosine -0.04"), Evidence("the others 0.36"))
    finding = Finding("FED001", "faulty-client", "label-flip", Severity.ERROR, "c5 is odd", subject, 0.97, evidence)
    shown = finding._repr_html_()
    assert (
        "c5, &lt;c6&gt;" in shown and "cosine -0.04\nthe others 0.36" in shown and "round 3" in shown and "97%" in shown
    )
    assert (str(finding.severity), int(finding.severity)) == ("error", 3)


def test_what_is_shown_is_escaped_and_bounded() -> None:
    shown = table_html([MARKUP], [[MARKUP], [None], [float("nan")], ["x" * 10_000]], MARKUP, MARKUP)
    assert "<script" not in shown and shown.count("&lt;script") == 4 and len(shown) < 2000
    assert "950 more rows" in table_html(["a"], ([row] for row in range(1000)))


def test_arrow_tables_show_themselves_in_ipython(trained: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    printers: dict[type, object] = {}
    formatter = SimpleNamespace(type_printers=printers, for_type=printers.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with stethos.open_run(trained.path) as run:
        table = run.sql("SELECT step, loss FROM steps ORDER BY step")
    show = printers[pa.Table]
    assert callable(show) and "<th" in show(table) and show(table).count("<tr>") == 31


@pytest.mark.parametrize("first", ["", "import stethos.profile.report", "import stethos.diagnose.engine"])
def test_functions_are_callable_whatever_was_imported_before(trained: RunBuilder, first: str) -> None:
    code = f"{first}\nimport stethos\nprint(stethos.profile({str(trained.path)!r}).run, callable(stethos.diagnose))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [trained.path.name, "True"]


def test_steps_and_metrics_are_plotted(trained: RunBuilder) -> None:
    with stethos.open_run(trained.path) as run:
        figure = run.plot.steps()
        assert figure.axes[0].get_ylabel() == "loss"
        assert list(figure.axes[0].lines[0].get_ydata())[:2] == [1.0, 0.5]
        logged = run.plot.metrics("accuracy")
        assert [axis.get_ylabel() for axis in logged.axes] == ["accuracy"]
        assert sorted(logged.axes[0].lines[0].get_ydata()) == [0.5, 0.75]
        with pytest.raises(UsageError, match="no metric"):
            run.plot.metrics("nothing")
