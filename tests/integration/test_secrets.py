"""Forms of secrets, said in every way a program has: none is in the bytes of the run or in what is read of it."""

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


NAMED = """
import json, logging, sys, threading
import torch, stethos
from torch.utils.tensorboard import SummaryWriter
key, word = sys.argv[1], sys.argv[3]
url = f'postgres://me:{key}@db/x'
config = {'secrets': {'db': word}, key: 1, 'env': [{'name': 'DB_PASSWORD', 'value': word}], url: url,
          'headers': [['Authorization', word]]}
model = torch.nn.Sequential(); model.add_module('out-' + key, torch.nn.Linear(8, 3))
sites = {f'https://me:{key}@site-{place}': (torch.randn(16, 8), torch.randint(3, (16,))) for place in range(3)}
with stethos.federation(url, model=model, run='named', capture='all', config=config) as federation:
    log = SummaryWriter('board')
    log.add_text(key, f'password={word}', 1)
    log.add_text('db/password', word, 1)
    stethos.log(api_key=word, generated_tokens='the cat sat')
    log.add_hparams({key: 1, 'password': word}, {key: 2.0})
    for rnd in federation.rounds(2):
        for name, (x, y) in sites.items():
            with rnd.client(name, label=url) as site:
                local = torch.nn.Sequential(); local.add_module('out-' + key, torch.nn.Linear(8, 3))
                local.load_state_dict(model.state_dict())
                optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
                torch.nn.functional.cross_entropy(local(x), y).backward()
                optimizer.step()
                stethos.log({key: 1.0, url: 2.0})
                with stethos.span(key, field=url, password=word): pass
                site.update(local.state_dict(), samples=len(x))
        rnd.evaluate(**{key: 0.5})
        model.load_state_dict(rnd.aggregate())
    threading.Thread(target=lambda: logging.getLogger(key).warning('x %s', url), name=key).start()
    logging.error('%s', {'password': word})
    for line in ['-----BEGIN PRIVATE KEY-----', 'MIIEvQIBADANBgkqhkiG9w0BAQEFAASC' + 32 * 'q', 16 * word[:4], 'end']:
        logging.error(line)
    def inner(token=word): raise ValueError(f'token={token!r} {url}')
    inner()
"""


def test_no_name_that_a_program_gives_keeps_a_secret(here: Path) -> None:
    """Clients, metrics, spans, loggers, threads and settings; in tables, a capture, exports and reports."""
    key, word = "ghp_" + "aB3dE6gH9" * 4, "Xy7WordE6gH9"
    (here / "train.py").write_text(NAMED, encoding="utf-8")
    finish(start_command("run", "--name", "named", "train.py", key, "--password", word))
    run, _ = collected(here / "runs" / "named")
    assert run.rows("SELECT count(*) FROM client_rounds").values == [(6,)]
    read = [json.dumps(run.rows(f"SELECT * FROM {table}").values, default=str) for table in run.tables()]
    for form in ("csv", "prometheus", "otlp", "speedscope", "tensorboard"):
        command("export", "-t", run.path, "--to", form, "-o", here / "out" / form)
    for name in ("r.html", "r.md"):
        command("report", "-t", run.path, "-o", here / "out" / name)
    read.append(command("replay", "-t", run.path, "--round", "2").stdout)
    files = [file for place in (run.path, here / "out") for file in place.rglob("*") if file.is_file()]
    files = [file for file in files if "capture" not in file.parts or file.suffix == ".json"]  # which has layers' names
    assert {"r.html", "r.md", "csv", "settings.json"} <= {part for file in files for part in file.parts}
    content = "\n".join([*read, *(file.read_bytes().decode("latin-1") for file in files)])
    assert key[:20] not in content and word not in content and 16 * word[:4] not in content and 32 * "q" not in content
    assert "https://[redacted]@site-2" in content and "the cat sat" in content
