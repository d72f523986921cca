"""Count the code: files and lines of each package, of abilities that are newer than a commit, and journeys through it.

    python tools/census.py [BEFORE]

BEFORE is a commit, by default the one of version 0.1.0; the other side is the working tree. A module belongs to a newer
ability if it serves nothing else. What older modules grew by for the sake of new abilities counts as old, so the answer
to "did the old abilities become smaller" errs on the safe side.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FIRST_VERSION = "bb25b2f"

# Abilities that version 0.1.0 did not have, and the modules that serve nothing else.
NEW_ABILITIES: dict[str, tuple[str, ...]] = {
    "collecting from clients on other machines": (
        "collect/", "cli/collect.py", "cli/enroll.py", "cli/policy.py", "adapters/remote_site.py",
    ),
    "archives, and questions to many runs": (
        "archive/", "cluster.py", "store/narrowing.py", "cli/archive.py", "cli/screen/fleet.py",
        "cli/task/on_cluster.py",
    ),
    "what a training program does wrong": (
        "diagnose/program/", "diagnose/moving_goal.py", "observe/answers.py", "observe/attention",
        "observe/autograd_graph.py", "observe/batch_facts.py", "observe/batch_print.py", "observe/call_check.py",
        "observe/checkpoint_check.py", "observe/checksum.py", "observe/data_sets.py", "observe/dependence.py",
        "observe/evaluation.py", "observe/function_code.py", "observe/gradient_call.py", "observe/graph_check.py",
        "observe/hand_step.py", "observe/helper_model.py", "observe/hyperparameters.py", "observe/inspection",
        "observe/kept_graph.py", "observe/labels_near.py", "observe/loss_graph.py", "observe/loss_terms.py",
        "observe/mode_facts.py", "observe/module_check.py", "observe/optimizer_facts.py",
        "observe/parameter_facts.py", "observe/policy_sign.py", "observe/prior.py", "observe/program_check.py",
        "observe/row_print.py", "observe/schedules.py", "observe/warnings_shown.py",
    ),
    "ranks that differ, the origin of a NaN, running out of memory": (
        "diagnose/ranks/", "diagnose/system/out_of_memory.py", "observe/replica.py", "observe/nan_origin.py",
        "observe/out_of_memory.py", "observe/cuda/every_step.py", "profile/divergence.py", "cli/diverge.py",
    ),
    "silent corruption of a step, and GPU time by kind of kernel": (
        "observe/repeat/", "diagnose/system/silent_corruption.py", "live/device_time.py", "live/kernel_class.py",
    ),
    "what Lightning, Transformers, Accelerate, Ray and torchrun tell": ("observe/frameworks/",),
    "evidence from inside clients": (
        "diagnose/federated/accusation.py", "diagnose/federated/column_unlikeness.py",
        "diagnose/federated/common_values.py", "diagnose/federated/data_sketch.py",
        "diagnose/federated/data_unlikeness.py", "diagnose/federated/inside", "diagnose/federated/reference.py",
        "diagnose/federated/repeated_samples.py", "diagnose/federated/standing_out.py",
        "diagnose/federated/unlike", "diagnose/federated/weighing.py", "federate/batch_rows.py",
        "federate/data_sketch.py", "federate/loss_batch.py", "federate/mixed_inputs.py", "federate/step_check.py",
        "federate/turn_evidence.py", "federate/update_check.py", "turn_facts.py",
    ),
    "federations that stall, filter or aggregate securely": (
        "diagnose/federated/app_start.py", "diagnose/federated/different_models.py",
        "diagnose/federated/faulty_in_groups.py", "diagnose/federated/filtered_update.py",
        "diagnose/federated/group_test.py", "diagnose/federated/over_filtered.py",
        "diagnose/federated/site_clock.py", "diagnose/federated/stalled_federation.py",
        "diagnose/federated/unseen_federation.py", "federate/group_sums.py", "federate/legs.py",
        "federate/model_digest.py", "federate/own_traits.py", "lab/group_sums.py",
    ),
    "runs and loggers of other tools, media, histograms": (
        "store/foreign/", "cli/importing.py", "observe/histogram.py", "observe/loggers.py", "observe/media.py",
    ),
    "runs of strangers behind a border": (
        "record/border.py", "record/directories.py", "secret_forms.py", "store/asker.py", "store/database.py",
        "store/limit.py", "web/body.py", "web/connections.py",
    ),
    "labels, tables of runs, notebooks, completion, assistants, detectors of others": (
        "store/labels.py", "store/html.py", "store/listing.py", "web/run_table.py", "profile/api.py", "view/metric.py",
        "cli/completion.py", "cli/task/complete.py", "cli/mcp.py", "cli/task/mcp_server.py", "cli/screen/help_page.py",
        "diagnose/installed.py", "diagnose/followup.py", "testing.py", "cli/link.py", "web/links.py",
        "web/own_panels.py", "web/kept_rows.py", "store/silences.py", "cli/screen/top_keys.py",
    ),
}  # fmt: skip

# The files that one passes through, in order, each with something that is called there.
JOURNEYS: dict[str, tuple[str, ...]] = {
    "a step's loss and gradient statistics to `stethos query`": (
        "settings.py child_environment", "_site/sitecustomize.py _begin", "observe/boot.py watch_torch",
        "observe/torch_hooks.py install", "observe/hotpath.py wrap_backward", "observe/step_recorder.py sample",
        "observe/step_sampler.py sample", "observe/sample.py take", "observe/device_statistic.py start",
        "observe/statistic.py statistics_of", "observe/session.py put_frame", "record/ring.py writer",
        "record/drainer.py main", "record/collector.py drain", "record/tap.py read_slots",
        "record/arrow.py slot_batches", "record/segment.py SegmentWriter", "cli/query.py run", "store/run.py rows",
        "store/statement.py tables_named", "store/process.py growing",
        "store/engine.py rows", "cli/screen/grid.py show_grid",
    ),
    "`site.update()` to the finding about a client": (
        "federate/site.py update", "federate/round.py _receive", "federate/round_prints.py RoundPrints",
        "federate/fingerprint.py UpdateBuffer", "federate/sketch.py SketchPlan", "federate/structure.py copy_flat",
        "federate/comparison.py compare", "federate/row.py put_row", "store/view.py _client_rounds_sql",
        "cli/diagnose.py run", "diagnose/api.py look", "diagnose/engine.py examine", "diagnose/window.py RunWindow",
        "diagnose/federated/faulty_client.py FaultyClient", "diagnose/federated/cohort.py cohorts_of",
        "diagnose/federated/accusation.py weigh", "diagnose/federated/verdict.py verdicts_and_split",
        "diagnose/federated/trait.py Traits", "diagnose/federated/judge.py opinions_on", "diagnose/life.py keep",
        "store/findings.py keep_findings", "cli/screen/verdict.py show_report",
    ),
}  # fmt: skip


def sources(commit: str | None) -> dict[str, str]:
    """The Python files of `src/stethos` by path below it: of a commit, or of the working tree."""
    root = "src/stethos/"
    if commit is None:
        found = sorted((PROJECT / root).rglob("*.py"))
        return {str(path.relative_to(PROJECT / root)): path.read_text(encoding="utf-8") for path in found}
    names = [name for name in _git("ls-tree", "-r", "--name-only", commit, root).split() if name.endswith(".py")]
    return {name.removeprefix(root): _git("show", f"{commit}:{name}") for name in names}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True).stdout


def lines_of(text: str) -> int:
    return text.count("\n")


def package_of(name: str) -> str:
    return name.split("/")[0] if "/" in name else "(top)"


def ability_of(name: str) -> str | None:
    """The newer ability that a module serves alone."""
    return next((ability for ability, places in NEW_ABILITIES.items() if name.startswith(places)), None)


def package_table(before: dict[str, str], now: dict[str, str]) -> list[str]:
    rows = ["| package | files | lines | files now | lines now | of these new abilities | the rest |"]
    rows.append("|---|--:|--:|--:|--:|--:|--:|")
    total = [0] * 6
    for package in sorted({*map(package_of, before), *map(package_of, now)}):
        old = [lines_of(text) for name, text in before.items() if package_of(name) == package]
        new = {name: lines_of(text) for name, text in now.items() if package_of(name) == package}
        added = sum(count for name, count in new.items() if ability_of(name) is not None)
        cells = [len(old), sum(old), len(new), sum(new.values()), added, sum(new.values()) - added]
        total = [one + other for one, other in zip(total, cells, strict=True)]
        rows.append(f"| {package} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    rows.append("| **all** | " + " | ".join(f"{cell:,}" for cell in total) + " |")
    share = total[5] / total[1] - 1
    return [*rows, "", f"What existed before: {total[1]:,} lines then, {total[5]:,} now ({share:+.1%})."]


def ability_table(now: dict[str, str]) -> list[str]:
    counts: Counter[str] = Counter()
    for name, text in now.items():
        if (ability := ability_of(name)) is not None:
            counts[ability] += lines_of(text)
    return [
        "| new ability | lines |",
        "|---|--:|",
        *(f"| {name} | {count:,} |" for name, count in counts.most_common()),
    ]


def journey_table(now: dict[str, str]) -> list[str]:
    rows = ["| journey | files |", "|---|--:|"]
    for journey, steps in JOURNEYS.items():
        for step in steps:
            name, called = step.split()
            if not re.search(rf"\b(def|class) {called}\b", now.get(name, "")):
                raise SystemExit(f"the journey {journey!r} has moved: {step}")
        rows.append(f"| {journey} | {len({step.split()[0] for step in steps})} |")
    return rows


def shared_class_names(texts: dict[str, str]) -> int:
    """How many public class names occur in more than one module."""
    found = Counter(
        node.name
        for text in texts.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sum(count > 1 for count in found.values())


def selects(texts: dict[str, str]) -> int:
    """How many queries stand where only screens should be."""
    screens = ("cli/", "web/", "export/")
    return sum(len(re.findall(r"\bSELECT\b", text)) for name, text in texts.items() if name.startswith(screens))


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else FIRST_VERSION
    before, now = sources(commit), sources(None)
    print(*package_table(before, now), "", *ability_table(now), "", *journey_table(now), "", sep="\n")
    print(f"public class names in two modules: {shared_class_names(before)} before, {shared_class_names(now)} now")
    print(f"SELECT in cli/, web/ and export/: {selects(before)} before, {selects(now)} now")


if __name__ == "__main__":
    main()
