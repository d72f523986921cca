"""What the source of a program tells: calls without effect, fits before a split, steps beyond an episode's end."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from recording import Recording

from stethos.diagnose.api import diagnose
from stethos.observe.program_line import parsed_source
from stethos.observe.source_check import SourceCheck, remarks_on

Record = Callable[..., Recording]
BUFFER = "memory.append((state, action, reward, after, done))\n"


def kinds(text: str) -> list[str]:
    return [kind for _, kind, _ in remarks_on(ast.parse(dedent(text)))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("scores.masked_fill(mask, -1e9)", ["result-unused"]),
        ("scores = scores.masked_fill(mask, -1e9)", []),
        ("scores.masked_fill_(mask, -1e9)", []),
        ("torch.relu(x)", ["result-unused"]),
        ("F.relu(x, inplace=True)", []),
        ("torch.add(x, y, out=z)", []),
        ("np.clip(x, 0, 1)", ["result-unused"]),
        ("np.clip(x, 0, 1, x)", []),
        ("seen.add(x)\nlogger.log(x)\nplt.scatter(x, y)\nmodel.to(device)", []),
        ("optimizer.zero_grad", ["not-called"]),
        ("model.eval()\noptimizer.zero_grad()\nstep = model.step", []),
        ("torch.no_grad()\nevaluate(model)", ["not-entered"]),
        ("with torch.no_grad():\n    evaluate(model)", []),
        ("def unused(x):\n    x.detach()", []),
        ("def used(x):\n    x.detach()\nused(1)", ["result-unused"]),
        ("class Net:\n    def forward(self, x):\n        x.detach()", ["result-unused"]),
        ("", []),
    ],
)
def test_statements_without_effect(text: str, found: list[str]) -> None:
    assert kinds(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = SelectKBest(f).fit_transform(x, y).astype('f4')\na, b = train_test_split(x)", ["picked-before-split"]),
        ("s = SMOTE()\nx, y = s.fit_resample(x, y)\na, b = train_test_split(x, y)", ["picked-before-split"]),
        ("a, b = train_test_split(x)\na = SelectKBest(f).fit_transform(a, y)", []),
        ("x = StandardScaler().fit_transform(x)\na, b = train_test_split(x)", []),
        ("x_test = scaler.fit_transform(x_test)", ["fitted-on-held-out"]),
        ("x_train = scaler.fit_transform(x_train)\nx_test = scaler.transform(x_test)", []),
        ("latest = scaler.fit_transform(latest)", []),
        ("np.random.shuffle(x)\nnp.random.shuffle(y)", ["shuffled-apart"]),
        ("np.random.seed(0)\nnp.random.shuffle(x)\nnp.random.seed(0)\nnp.random.shuffle(y)", []),
        ("random.shuffle(x_train)\nrandom.shuffle(x_test)", []),
        ("x = x[torch.randperm(9)]\nlabels = labels[torch.randperm(9)]", ["shuffled-apart"]),
        ("p = torch.randperm(9)\nx, y = x[p], y[p]", []),
    ],
)
def test_data_that_are_known_before_or_fall_apart(text: str, found: list[str]) -> None:
    assert kinds(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BUFFER + "target = reward + gamma * net(after).max(1).values", ["beyond-the-end"]),
        (BUFFER + "target = reward + gamma * (1 - done) * net(after).max(1).values", []),
        (BUFFER + "target = reward + gamma * net(after).max(1).values * not_final", []),
        (BUFFER + "total = reward + gamma * total", []),
        ("target = reward + gamma * net(after).max(1).values", []),
    ],
)
def test_targets_beyond_the_end_of_an_episode(text: str, found: list[str]) -> None:
    """Where no end is stored there may be none."""
    assert kinds(f"def learn():\n    {text.split(chr(10))[-1]}\n{BUFFER if BUFFER in text else ''}learn()") == found


METER = """
    class Meter:
        def __init__(self):
            self.reset()
        def reset(self):
            self.sum = 0
        def update(self, x):
            self.sum += x
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class Run:\n    def __init__(self):\n        self.loss, self.hits = Meter(), Meter()", ["never-reset"]),
        ("class Run:\n    def go(self):\n        self.loss = Meter()\n        self.loss.reset()", []),
        ("def epoch():\n    loss = Meter()\n    return loss", []),
        ("class Own(Meter):\n    pass\nclass Run:\n    def __init__(self):\n        self.loss = Meter()", []),
    ],
)  # fmt: skip
def test_sums_that_are_never_reset(text: str, found: list[str]) -> None:
    assert kinds(dedent(METER) + text) == found


PROGRAM = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        inputs = torch.randn(16, 4)
        {}
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, 0].gt(0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("line", "found"), [("inputs.clamp(-1, 1)", {"result-unused"}), ("inputs = inputs.clamp(-1, 1)", set())]
)
def test_a_program_is_named_with_its_line(record: Record, tmp_path: Path, line: str, found: set[str]) -> None:
    file = tmp_path / "program.py"
    file.write_text(dedent(PROGRAM).format(line), encoding="utf-8")
    recording = record()
    runpy.run_path(str(file), run_name="__main__")
    recording.close()
    said = [one for one in diagnose(recording.path).findings if one.name == "wrong-call"]
    assert {one.kind for one in said} == found
    assert all("program.py:8" in one.evidence[0].text for one in said)


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x.detach(\n", encoding="utf-8")
    code = compile("import sys\nframe = sys._getframe()", str(broken), "exec")
    names: dict[str, object] = {}
    exec(code, names)
    assert SourceCheck().remarks(names["frame"], []) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("target_net = policy_net", ["not-copied"]),
        ("self.teacher = self.student", ["not-copied"]),
        ("target_net = copy.deepcopy(policy_net)\nmodel = net\ntarget = y\nbest_model = ema_model", []),
        ("x_test = (x_test - x_test.mean(0)) / x_test.std(0)", ["fitted-on-held-out"]),
        ("x_test = (x_test - x_train.mean(0)) / x_train.std(0)\nx = (x - x.mean()) / x.std()", []),
        ("val_loss = evaluate(model, train_loader)", ["measured-on-training"]),
        ("val_acc, val_loss = evaluate(model, val_loader), 0\ntrain_acc = evaluate(model, train_loader)", []),
        ("test_acc = evaluate(model, x_test, scale=train_scale)", []),
    ],
)
def test_names_that_say_what_is_meant(text: str, found: list[str]) -> None:
    assert kinds(text) == found


def looped(last: str) -> str:
    return f"for x, y in loader:\n    total += loss(x, y)\n    count += 1\n{last}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (looped("    break"), ["ends-early"]),
        (looped("print(total)"), []),
        (looped("    if count > 9:\n        break"), []),
        ("for x in loader:\n    print(x)\n    break", []),
        ("for x in range(9):\n    total += x\n    count += 1\n    break", []),
        ("try:\n    loss.backward()\nexcept Exception:\n    pass", ["errors-hidden"]),
        ("try:\n    loss.backward()\nexcept Exception as error:\n    print(error)", []),
        ("try:\n    loss.backward()\nexcept KeyboardInterrupt:\n    pass", []),
    ],
)
def test_loops_and_errors(text: str, found: list[str]) -> None:
    """One batch that is only looked at is no loop cut short."""
    assert kinds(text) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return nn.Dropout(0.5)(x)", ["made-in-forward"]),
        ("return self.dropout(x)", []),
        ("return F.dropout(x, 0.5)", ["always-on"]),
        ("return F.dropout(x, 0.5, self.training)", []),
        ("return F.dropout(x, training=True)", []),
    ],
)
def test_layers_of_a_forward_pass(line: str, found: list[str]) -> None:
    """Dropout that stays on can be meant, where it is said."""
    assert kinds(f"class Net:\n    def forward(self, x):\n        {line}") == found
    assert kinds(line.removeprefix("return ").replace("F.", "")) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return self.body(x)", ["never-used"]),
        ("return self.drop(self.body(x))", []),
        ("return getattr(self, 'drop')(self.body(x))", []),
    ],
)
def test_parts_of_a_model_that_are_never_used(line: str, found: list[str]) -> None:
    """Where attributes are read by name nobody can tell."""
    made = "self.body = nn.Linear(4, 4)\n        self.drop = nn.Dropout(0.1)"
    text = f"class Net(nn.Module):\n    def __init__(self):\n        {made}\n    def forward(self, x):\n        {line}"
    assert kinds(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("x = x // 255", ["rounded-to-zero"]), ("x = x / 255", []), ("x = x // 2", [])]
)
def test_pixels_that_are_rounded(text: str, found: list[str]) -> None:
    assert kinds(text) == found


def test_wrong_escapes_of_a_program_are_not_warned_of_again(tmp_path: Path) -> None:
    """Warnings are errors in these tests."""
    (tmp_path / "program.py").write_text("digits = '\\d+ \\' \\\\'\nraw = r'\\w'\nx = 1 + \\\n  2\nscores.clamp(0)\n")
    tree = parsed_source(str(tmp_path / "program.py"), 1000)
    assert tree is not None and [line for _, _, line in remarks_on(tree)] == [5]
