"""Sixty forms of secrets, said in every way a program has: none is in the bytes of the run or in what is read of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from canaries import canaries
from processes import collected, command, finish, start_command

PROGRAM = """
import json, logging, sys
import stethos
said = json.load(open(sys.argv[1]))
stethos.watch(config={'lr': 0.1, 'texts': list(said.values()), 'by name': said})
for name, text in said.items():
    logging.warning('%s', text)
    with stethos.span('span', note=text): pass
    logging.getLogger(text).error('from a logger of this name')
raise ValueError('all of them: ' + ' | '.join(said.values()))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_canary_is_found_in_a_run(here: Path) -> None:
    known = canaries(seed=7)
    (here / "said.json").write_text(json.dumps({name: text for name, (text, _) in known.items()}), encoding="utf-8")
    (here / "train.py").write_text(PROGRAM, encoding="utf-8")
    words = [text for text, _ in known.values() if "\n" not in text]
    finish(start_command("run", "--name", "canaries", "train.py", "said.json", *words))
    run, _ = collected(here / "runs" / "canaries")
    read = [json.dumps(run.rows(f"SELECT * FROM {table}").values, default=str) for table in run.tables()]
    command("export", "-t", run.path, "--to", "csv", "-o", here / "out")
    files = [file for place in (run.path, here / "out") for file in place.rglob("*") if file.is_file()]
    content = "\n".join([*read, *(file.read_bytes().decode("latin-1") for file in files)])
    assert run.rows("SELECT count(*) FROM logs").values[0][0] >= 2 * len(known) >= 120
    assert [name for name, (_, secret) in known.items() if secret in content] == []
    assert "[redacted]" in content
