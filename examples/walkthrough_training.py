"""`make traindemo`: record examples/demo.py, which does not know of us, and find out why it went wrong.

Every command is shown before it runs; all of them can be typed by hand.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs"
PROGRAM = "examples/demo.py"

# (what we want to know, the SQL that answers it)
QUESTIONS = (
    (
        "When did it go wrong? Look at the steps around the first loss that is not a number.",
        """
        WITH onset AS (SELECT min(step) AS bad FROM steps WHERE NOT isfinite(loss))
        SELECT step, loss, lr, grad_norm FROM steps, onset
        WHERE step BETWEEN bad - 14 AND bad + 1 ORDER BY step
        """,
    ),
    (
        "The learning rate jumped. How did the training do before and after?",
        """
        SELECT lr, min(step) AS first_step, count(*) AS steps,
               min(loss) AS best_loss, count(*) FILTER (NOT isfinite(loss)) AS nan_steps
        FROM steps GROUP BY lr ORDER BY first_step
        """,
    ),
    (
        "Which layer went first, and at which step? Gradients per layer, from the sampled steps.",
        """
        SELECT layer, max(norm) FILTER (nan + inf = 0) AS largest_norm,
               min(step) FILTER (nan + inf > 0) AS first_bad_step,
               max(nan + inf) AS bad_elements, max(size) AS elements
        FROM layers WHERE kind = 'gradient'
        GROUP BY layer ORDER BY first_bad_step, largest_norm DESC
        """,
    ),
    (
        "And the program's own log? It noticed at the end of the epoch.",
        """
        WITH onset AS (SELECT min(step) AS bad FROM steps WHERE NOT isfinite(loss))
        SELECT step, message FROM logs, onset
        WHERE step BETWEEN bad - 100 AND bad + 100 ORDER BY step
        """,
    ),
    (
        "While we are here: where does the time go? The slowest modules of the sampled steps.",
        """
        SELECT module, stage, count(*) AS samples,
               round(1000 * median(duration), 3) AS median_ms
        FROM python.torch_trace
        GROUP BY module, stage ORDER BY median_ms DESC LIMIT 8
        """,
    ),
)


def main() -> int:
    name = next(name for number in count(1) if not (RUNS / (name := f"digits-{number}")).exists())
    title("1. Train a network on handwritten digits; its code is unchanged")
    stethos("run", "--name", name, PROGRAM)
    title("2. What was recorded, what was not and why, and what it cost")
    stethos("ls")
    stethos("tables", "-t", name)
    stethos("doctor", "-t", name)
    title("3. Why is the loss not a number? Ask")
    for question, sql in QUESTIONS:
        say(f"\n{question}", "1;36")
        stethos("query", "-t", name, indented(sql))
    title("Found")
    lines = (ROOT / PROGRAM).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "gamma=10" in text)
    print(f"{PROGRAM}, line {line}: gamma=10 multiplies the learning rate by 10 where 0.1 was meant.\n")
    print(f"The run is kept in runs/{name}. Ask it something yourself:\n")
    print(f'  .venv/bin/stethos query -t {name} "SELECT * FROM host"\n')
    return 0


def stethos(*words: str) -> None:
    """Show a command as it would be typed, then run it."""
    say(f"\n$ stethos {' '.join(map(quoted, words))}", "2")
    subprocess.run([sys.executable, "-m", "stethos.cli.main", *words], cwd=ROOT, check=True)


def quoted(word: str) -> str:
    return f'"{word}"' if "\n" in word else shlex.quote(word)


def indented(sql: str) -> str:
    """The statement's lines, further in than the command before them."""
    lines = sql.strip("\n").rstrip().splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n" + "\n".join(f"  {line[margin:]}" for line in lines)


def title(text: str) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    say(f"\n=== {text} {'=' * (width - len(text) - 5)}", "1")


def say(text: str, style: str) -> None:
    """A line of our own, in a style where there is a terminal, before the next command writes."""
    is_terminal = sys.stdout.isatty()
    print(f"\x1b[{style}m{text}\x1b[0m" if is_terminal else text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
