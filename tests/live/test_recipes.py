"""Every command of the live-debugging recipes, on a training whose names are globals and on one inside `main()`."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from living import Living
from processes import PROGRAMS, environment, finish, start_command, start_program, wait_for_rest, wait_until

from stethos.store.run import open_run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console live\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SOURCE = (PROGRAMS / "live_training.py").read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE, 1) if text in line)


# Hangs ---------------------------------------------------------------------------------------------------------


def test_a_backtrace_shows_the_true_line_and_hides_ours(training: Living) -> None:
    out = training.ok(str(training.process().pid), "backtrace")
    assert "live_training.py" in out and ("main()" in out or training.kind == "globals")
    assert "src/stethos/" not in out and "stethos-agent" not in out
    threads = json.loads(training.ok("backtrace", "--json"))
    assert threads[0]["is_main"] and threads[0]["frames"][-1]["func"] == "<module>"


def test_native_frames_are_shown_when_asked_for(with_main: Living) -> None:
    threads = json.loads(with_main.ok("backtrace", "--native", "--json"))
    assert any(frame["is_native"] for frame in threads[0]["frames"])
    assert any(frame["file"].endswith("live_training.py") for frame in threads[0]["frames"])


def test_a_select_captures_the_stack(training: Living) -> None:
    rows = training.rows("SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10")
    assert rows[0]["depth"] == 0 and all(row["file"] and row["lineno"] for row in rows)
    assert {row["frame_type"] for row in training.rows("SELECT frame_type, ip, thread FROM python.backtrace")} == {
        "Python"
    }
    assert training.rows("SELECT DISTINCT thread, reason FROM stacks") == [{"thread": "MainThread", "reason": "now"}]


def test_a_stalled_data_loader_is_found_by_its_line(training: Living) -> None:
    (training.directory / "stall").touch()
    try:
        # Between two sleeps it is for a moment in the line before.
        place = f"live_training.py:{line_of('the disk is slow')}"
        assert "wait_for_disk" in wait_until(
            lambda: out if place in (out := training.ok("backtrace")) else "", "the data set to wait"
        )
        sql = "SELECT func, lineno FROM python.backtrace WHERE file LIKE '%live_training.py' ORDER BY depth"
        found = {"func": "SlowDisk.wait_for_disk", "lineno": line_of("the disk is slow")}
        wait_until(lambda: training.rows(sql)[0] == found, "its line in SQL")
        # No step comes, so the code runs beside the training, and says so.
        said = training.say(
            "eval", "--wait", "0.3", "print(f'{train_loader.num_workers} {train_loader.prefetch_factor}')"
        )
        assert (said.status, said.out) == (0, "0 None\n") and "no optimizer step came within 0.3 s" in said.err
        (live,) = json.loads(training.ok("ls", "--json"))[0]["live"]
        assert live["pid"] == training.process().pid and live["last_step_s"] > 0
    finally:
        (training.directory / "stall").unlink()
    training.wait_for_steps(2)


def test_threads_are_listed(training: Living) -> None:
    out = training.ok("eval", """
import threading
for t in threading.enumerate():
    print(f'{t.name}: alive={t.is_alive()}')""")  # fmt: skip
    assert "MainThread: alive=True\n" in out


def test_the_data_loader_is_reached_by_name(training: Living) -> None:
    out = training.ok("eval", """
import torch.utils.data
print(f'DataLoader workers: {train_loader.num_workers}')
print(f'Prefetch factor: {train_loader.prefetch_factor}')""")  # fmt: skip
    assert out == "DataLoader workers: 0\nPrefetch factor: None\n"


def test_the_distributed_state_is_asked_without_a_collective(training: Living) -> None:
    assert training.ok("eval", """
import torch.distributed as dist
if dist.is_initialized():
    print(f'Rank: {dist.get_rank()}')
    print(f'Waiting for barrier...')
    # Don't actually call barrier here!""") == ""  # fmt: skip


# Loss explosion -------------------------------------------------------------------------------------------------


def test_non_finite_gradients_are_named(training: Living) -> None:
    look = """
import torch
for name, param in model.named_parameters():
    if param.grad is not None:
        has_nan = torch.isnan(param.grad).any().item()
        has_inf = torch.isinf(param.grad).any().item()
        if has_nan or has_inf:
            print(f'{name}: NaN={has_nan}, Inf={has_inf}')"""
    assert training.ok("eval", look) == ""
    # The gradients are ready when the code runs; put one right again after looking.
    spoil = "keep = model[0].bias.grad.clone(); model[0].bias.grad.fill_(float('nan'))"
    assert "0.bias: NaN=True, Inf=False\n" in training.ok(
        "eval", f"{spoil}\n{look}\nmodel[0].bias.grad.copy_(keep); None"
    )


def test_clipping_is_looked_up_and_applied(training: Living) -> None:
    assert (
        training.ok("eval", "print(f'Grad clip value: {getattr(trainer, \"grad_clip\", None)}')")
        == "Grad clip value: 0.5\n"
    )
    assert training.value("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)").startswith("tensor(")
    norm = "torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()"
    clipped = training.value(f"torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-4); {norm}")
    assert float(clipped) <= 1.01e-4


def test_gradients_are_really_clipped_before_every_step(training: Living) -> None:
    assert "clipped to a norm of 1e-05" in training.ok("clip", "1e-5")
    # With momentum and decay taken out, a step of a clipped gradient moves the weights by lr times the norm at most.
    before = training.value("group = optimizer.param_groups[0]; (group['momentum'], group['weight_decay'])")
    assert before == "(0.9, 0.001)"
    training.wait_for_steps(2)
    clipped = training.value(
        "from torch.optim.optimizer import Optimizer; hooks = list(optimizer._optimizer_step_pre_hooks.values()); "
        "[hook(optimizer, (), {}) for hook in hooks]; "
        "torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()"
    )
    assert float(clipped) <= 1.01e-5
    assert "clipped to a norm of 1e-05" in training.ok("clip")
    assert "not clipped" in training.ok("clip", "off")
    assert training.value("len(optimizer._optimizer_step_pre_hooks)") == "0"


# Slow training, memory ------------------------------------------------------------------------------------------


def test_the_slowest_modules_are_asked_in_sql(training: Living) -> None:
    wait_until(lambda: training.rows("SELECT count(*) AS n FROM python.torch_trace")[0]["n"], "a traced step")
    rows = training.rows("""
SELECT
    module,
    stage,
    COUNT(*) as count,
    AVG(duration) as avg_time,
    SUM(duration) as total_time
FROM python.torch_trace
WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace)
GROUP BY module, stage
ORDER BY total_time DESC
LIMIT 10""")
    assert {row["stage"] for row in rows} >= {"forward"} and rows[0]["total_time"] > 0
    memory = training.rows("""
SELECT
    step,
    MAX(allocated) as peak_memory,
    MAX(allocated) - MIN(allocated) as memory_range
FROM python.torch_trace
WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace)
GROUP BY step
ORDER BY step""")
    assert memory and memory[0]["peak_memory"] > 0


def test_a_program_may_be_asked_from_inside(training: Living) -> None:
    """The recipe asks nvidia-smi; where there is none the traceback says so and the status is 1."""
    code = """
import subprocess
result = subprocess.run(['{}', '--version'], capture_output=True, text=True)
print(f'GPU Utilization: {{result.stdout.strip()}}')"""
    assert training.ok("eval", code.format("uname")).startswith("GPU Utilization: uname")
    said = training.say("eval", code.format("no-such-nvidia-smi"))
    assert said.status == 1 and "FileNotFoundError" in said.err


def test_memory_is_cleaned_up(training: Living) -> None:
    assert training.ok("eval", """
import gc
import torch

# Clear gradients
model.zero_grad(set_to_none=True)

# Garbage collection
gc.collect()

# Clear CUDA cache
if torch.cuda.is_available():
    torch.cuda.empty_cache()

print('Cleanup complete')""") == "Cleanup complete\n"  # fmt: skip
    assert "objects collected" in training.ok("gc")
    training.wait_for_steps(2)


# Checkpoints ----------------------------------------------------------------------------------------------------


def test_an_emergency_checkpoint_loads(training: Living) -> None:
    assert training.ok("eval", """
import torch
checkpoint = {
    'step': trainer.current_step,
    'model': model.state_dict(),
    'optimizer': optimizer.state_dict(),
}
torch.save(checkpoint, 'emergency_checkpoint.pt')
print('Emergency checkpoint saved')""") == "Emergency checkpoint saved\n"  # fmt: skip
    saved = torch.load(training.directory / "emergency_checkpoint.pt", weights_only=True)
    assert saved["step"] > 0 and set(saved["model"]) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert training.say("eval", "checkpoint").status == 1, "a name of the code's own does not stay in the training"


def test_one_word_saves_what_safetensors_and_we_can_load(training: Living) -> None:
    from safetensors.torch import load_file

    from stethos.live.checkpoint import load_checkpoint

    path = training.directory / "rescue.safetensors"
    said = training.ok("checkpoint", "--force", path)
    assert "Sequential and optimizer" in said
    tensors, ours = load_file(path), load_checkpoint(path)
    assert all(torch.equal(tensors[f"model.{name}"], value) for name, value in ours["model"].items())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.1)
    model.load_state_dict(ours["model"])
    optimizer.load_state_dict(ours["optimizer"])
    assert optimizer.param_groups[0]["momentum"] == 0.9 and ours["step"] > 0
    assert optimizer.state[model[0].weight]["momentum_buffer"].shape == (16, 8)
    assert training.say("checkpoint", path).status == 2, "it does not overwrite"
    assert training.say("checkpoint", training.directory / "nowhere" / "x.safetensors").status == 2
    assert [name.name for name in training.directory.glob(".rescue*")] == []


def test_a_checkpoint_is_inspected(training: Living) -> None:
    assert training.ok("eval", """
import torch
ckpt = torch.load('checkpoint.pt', map_location='cpu')
print(f'Keys: {ckpt.keys()}')
print(f'Step: {ckpt.get("step", "N/A")}')""") == "Keys: dict_keys(['step', 'model'])\nStep: 41\n"  # fmt: skip
    out = training.ok("inspect", "checkpoint.pt")
    assert "torch, step 41, 4 tensors" in out and "model.0.weight" in out and "16x8" in out


# Learning rate --------------------------------------------------------------------------------------------------


def test_the_rate_is_shown_and_really_changed(training: Living) -> None:
    assert training.ok("eval", """
for i, pg in enumerate(optimizer.param_groups):
    print(f'Group {i}: lr={pg["lr"]}, weight_decay={pg.get("weight_decay", 0)}')""") == (
        "Group 0: lr=0.01, weight_decay=0.001\n"
    )  # fmt: skip
    assert training.ok("eval", """
for pg in optimizer.param_groups:
    pg['lr'] *= 0.1
print(f'New LR: {optimizer.param_groups[0]["lr"]}')""") == "New LR: 0.001\n"  # fmt: skip
    step = training.steps()
    training.wait_for_steps(3)
    wait_until(lambda: training.rows(f"SELECT 1 FROM steps WHERE step > {step} AND abs(lr - 0.001) < 1e-9"), "its rows")
    training.ok("eval", "for pg in optimizer.param_groups: pg['lr'] = 0.01")


def test_one_word_changes_the_rate_and_takes_it_back(training: Living) -> None:
    assert "lr 0.001 " in training.ok("lr", "x0.1")
    assert math.isclose(float(training.value("optimizer.param_groups[0]['lr']")), 0.001)
    assert "lr 0.5 " in training.ok("lr", "0.5")
    assert "lr 0.001 " in training.ok("lr", "undo") and "lr 0.01 " in training.ok("lr", "undo")
    assert training.say("lr", "undo").status == 6
    assert training.say("lr", "fast").status == 2 and training.say("lr", "-1").status == 2
    assert "SGD  group 0  lr 0.01 " in training.ok("lr")


# Ranks ----------------------------------------------------------------------------------------------------------


def test_the_step_is_asked_for_in_each_way_to_name_a_target(training: Living) -> None:
    pid = str(training.process().pid)
    code = "print(f'Rank 0 step: {trainer.current_step}')"
    ways = [
        ["-t", pid, "eval", code], [training.kind, "eval", code], ["eval", code, "-t", f"{training.kind}/all"],
        ["all", "eval", code], ["-t", str(training.runs / training.kind), "eval", code],
    ]  # fmt: skip
    for words in ways:
        assert training.ok(*words).startswith("Rank 0 step: ")
    assert training.say("rank:0", "eval", code).status == 6


def test_synchronisation_is_verified_where_there_are_ranks(training: Living) -> None:
    assert training.ok("eval", """
import torch.distributed as dist
if dist.is_initialized():
    tensor = torch.tensor([trainer.current_step], device='cuda')
    dist.all_reduce(tensor)
    print(f'Sum of steps across ranks: {tensor.item()}')""") == ""  # fmt: skip


# The rest of the commands ---------------------------------------------------------------------------------------


def test_the_command_itself_works_from_a_shell(with_main: Living) -> None:
    env = environment(**with_main.variables)
    told = finish(start_command("eval", "-", env=env, cwd=with_main.directory), "print('from stdin')\n6 * 7\n")
    assert (told.returncode, told.stdout, told.stderr) == (0, "from stdin\n42\n", "")


def test_a_repl_on_a_pipe_keeps_its_names(training: Living) -> None:
    out = training.ok("repl", stdin="a = 5\nfor i in range(2):\n    print(i + a)\n\na + 1\n")
    assert out == "5\n6\n6\n"
    said = training.say("repl", stdin="1 / 0\nprint('goes on')\n")
    assert said.status == 1 and "ZeroDivisionError" in said.err and said.out == "goes on\n"


def test_assignments_reach_the_training_and_loops_do_not(training: Living) -> None:
    mark = training.directory / "marker"
    training.ok("eval", "marker = 17")
    wait_until(mark.exists, "the training to see its variable")
    training.ok("eval", "marker = 0")
    assert training.ok("eval", "for marker in range(5): pass\nmarker") == "4\n"
    assert training.value("marker") == "0"
    training.ok("eval", "new_name = 1")
    assert training.say("eval", "new_name").status == 1
    training.ok("eval", "global made_on_purpose\nmade_on_purpose = 3")
    assert training.value("made_on_purpose") == "3"


def test_functions_and_comprehensions_see_the_names_of_the_training(training: Living) -> None:
    assert training.value("bound = 3\n[min(bound, len(list(model.parameters()))) for _ in range(2)]") == "[3, 3]"
    assert training.value("def count(): return len(list(model.parameters()))\ncount()") == "4"


def test_everything_done_was_written_down_before(training: Living) -> None:
    training.ok("eval", "'a word to be found'")
    wait_until(
        lambda: len(training.rows("SELECT * FROM audit WHERE detail LIKE '%a word to be found%'")) == 2, "its rows"
    )
    rows = training.rows(
        "SELECT event, op, uid, pid, outcome FROM audit WHERE detail LIKE '%a word to be found%' ORDER BY t_ns"
    )
    assert [row["event"] for row in rows] == ["asked", "done"] and rows[0]["op"] == "eval" and rows[0]["pid"] > 1


def test_json_says_where_the_code_ran(training: Living) -> None:
    found = json.loads(training.ok("eval", "--json", "trainer.current_step"))
    assert found["where"] == "step" and int(found["value"]) > 0 and found["error"] is None
    found = json.loads(training.ok("eval", "--json", "--now", "trainer.current_step"))
    assert found["where"] == "thread" and int(found["value"]) > 0


@pytest.mark.parametrize("words", [["lr"], ["clip"], ["gc"]])
def test_small_acts_have_json(with_main: Living, words: list[str]) -> None:
    (found,) = json.loads(with_main.ok(*words, "--json"))
    assert found["ok"] is True and found["pid"] == with_main.process().pid


@pytest.mark.parametrize("block", BLOCKS)
def test_the_commands_of_the_page_work_one_after_the_other(with_main: Living, block: str) -> None:
    lines = block.splitlines()
    assert lines and all(line.startswith("$ stethos ") for line in lines)
    if "torch_trace" in block:
        wait_until(lambda: with_main.rows("SELECT count(*) AS n FROM python.torch_trace")[0]["n"], "a traced step")
    (with_main.directory / "rescue.safetensors").unlink(missing_ok=True)
    for line in lines:
        assert with_main.ok(*shlex.split(line.removeprefix("$ stethos "))), line


def test_reading_changes_no_bit(tmp_path: Path) -> None:
    """The same training without us, for as many steps, as with somebody who looks at it all the time."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "seen").mkdir()
    count = tmp_path / "count"
    bare = start_program("live_training.py", "globals", tmp_path / "bare", count, "0", cwd=tmp_path / "bare")
    seen = Living("globals", tmp_path / "seen")
    seen.wait_for_steps(3)
    for _ in range(5):
        seen.ok("backtrace")
        seen.ok("eval", "for i, x in enumerate(model.parameters()): print(x.grad.norm())\nfor loss in range(3): pass")
        seen.ok("eval", "--now", "optimizer.param_groups[0]['lr']")
    said = seen.close()
    wait_for_rest(seen.runs / "globals")
    (process,) = open_run(seen.runs / "globals").processes()
    (tmp_path / "written").write_text(str(process["steps"]))
    (tmp_path / "written").rename(count)
    assert finish(bare).stdout == said and len(said.strip()) == 64
