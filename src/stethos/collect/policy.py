"""What may leave a site: an allowlist of columns for each level, which the site's own file can change.

    level = "L1"                 L0 nothing, L1 operational, L2 health, L3 noise, L4 everything, for at most a day
    grant_until = 2026-01-01T18:00:00Z   until then L4, afterwards `level` again
    min_count = 32               fewer samples than this: numbers about the data stay
    [tables.steps]
    lr = "keep"                  or "drop", "bucket", or a number of digits with bounds:
    loss = {digits = 2, clip = [-10.0, 10.0], min_count = 64}    0: however many there are

Nobody else can raise a level: the file is read from the site's directory, and no answer of a collector is looked at
for it. What is not listed is not sent; a file that cannot be understood lets nothing through.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from stethos.errors import UsageError
from stethos.schema import RECORDED, Kind, Table
from stethos.toml_text import toml_in

Level = Literal["L0", "L1", "L2", "L3", "L4"]
LEVELS: tuple[Level, ...] = get_args(Level)
DEFAULT_LEVEL: Level = "L1"
LONGEST_GRANT_S = 24 * 3600.0
_SETTINGS = ("level", "grant_until", "min_count", "tables", "until", "noise")
Way = Literal["keep", "bucket", "round", "second", "error-type", "frames", "digest", "whether", "noise", "drop"]
MEANS: dict[Way, str] = {
    "keep": "as it is",
    "bucket": "rounded up to a power of two",
    "round": "rounded and clipped; only with enough samples",
    "second": "to the second",
    "error-type": "the exception's type, without its message",
    "frames": "function, file name and line, without messages, code or directories",
    "digest": "a digest of the model that was received; nothing else passes",
    "whether": "that there is something, not what",
    "noise": "with noise, while the budget of the run lasts; only with enough samples",
    "drop": "stays",
}


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What becomes of a column; the default keeps it back."""

    way: Way = "drop"
    digits: int = 2
    low: float = -1e6
    high: float = 1e6
    least: int = 0  # samples behind it; 0: as many as the policy says for all; NO_LEAST: whatever they are


NO_LEAST = -1
KEEP, BUCKET, ROUND, SECOND = ColumnRule("keep"), ColumnRule("bucket"), ColumnRule("round"), ColumnRule("second")
DROP, ERROR_TYPE, FRAMES = ColumnRule("drop"), ColumnRule("error-type"), ColumnRule("frames")
DIGEST, NOISE, WHETHER = ColumnRule("digest"), ColumnRule("noise"), ColumnRule("whether")
Rules = Mapping[str, ColumnRule]


def _rules(**ways: str) -> dict[str, ColumnRule]:
    """`keep="a b", bucket="c"`: the columns by what becomes of them."""
    made = {"keep": KEEP, "bucket": BUCKET, "round": ROUND}
    return {column: made[way] for way, columns in ways.items() for column in columns.split()}


_CONTEXT = {"client": KEEP, "round": KEEP, "optimizer": KEEP, "step": BUCKET, "t_ns": SECOND}
_MACHINE = "cpu_share rss_bytes threads machine_cpu_share machine_free_bytes"
_L1: dict[str, Rules] = {
    "client_reports": {
        **_CONTEXT,
        **_rules(
            keep="side federation turn status base_round",
            bucket="samples steps duration_ms download_ms compute_ms upload_ms wait_ms samples_per_s peak_bytes "
            "sent_bytes received_bytes raw_bytes",
        ),
        "error": ERROR_TYPE,
        "traceback": FRAMES,
        "filters": WHETHER,
    },
    "gaps": {**_CONTEXT, "what": KEEP},
    "host": {"t_ns": SECOND, **_rules(keep="machine_cores", bucket=_MACHINE)},
    "gpu": {"t_ns": SECOND, **_rules(keep="device", bucket="busy_share process_bytes used_bytes total_bytes")},
    "legs": {**_CONTEXT, **_rules(keep="federation side leg work", bucket="age_s"), "digest": DIGEST},
    "hangs": {"t_ns": SECOND, **_rules(keep="hang role cause limit_s", bucket="silent_s")},
}  # fmt: skip
_TIMES = "step_ms data_ms forward_ms backward_ms optimizer_ms"
_L2: dict[str, Rules] = {
    **_L1,
    "client_reports": {**_L1["client_reports"], **_rules(round="loss accuracy entry_loss exit_loss")},
    "steps": {
        **_CONTEXT,
        **_rules(
            keep="step local_step model lr backwards skipped", bucket=f"{_TIMES} samples allocated_bytes peak_bytes",
            round="loss grad_norm",
        ),
    },
    "modules": {**_CONTEXT, **_rules(keep="module stage", bucket="duration_ms allocated_bytes alive_bytes")},
    "memory": {**_CONTEXT, **_rules(keep="class device", bucket="bytes peak_bytes allocated_bytes freed_bytes")},
}  # fmt: skip
# One sample replaced by another changes these by a known amount at most: a share of samples, and counts of them.
NOISED = {"client_reports": ("accuracy", "confusion")}
_L3: dict[str, Rules] = {
    **_L1,
    **{table: {**_L1[table], **dict.fromkeys(columns, NOISE)} for table, columns in NOISED.items()},
}
_TABLES: dict[str, Table] = {table.name: table for table in RECORDED.values()}
_L4: dict[str, Rules] = {
    table.name: {column.name: KEEP for column in table.all_columns if column.name not in ("process", "rank")}
    for table in _TABLES.values()
}
PRESETS: dict[Level, dict[str, Rules]] = {"L0": {}, "L1": _L1, "L2": _L2, "L3": _L3, "L4": _L4}
# Facts of a process that leave, and what becomes of them; host, command, directory and configuration stay below L4.
FACTS: dict[str, ColumnRule] = {
    **_rules(keep="rank world_size python torch versions preset overhead_budget callbacks"),
    "started_ns": SECOND, "error": ERROR_TYPE, "traceback": FRAMES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoiseBudget:
    """What all numbers of a run that leave with noise may cost, and how many of them there will be.

    `classes` is the size of matrices of counts; without it none leaves, since their size would tell of the data.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    releases: int = 100
    classes: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """What may leave: rules by table and column. `level` is what the file says, or what is left of it in time."""

    level: Level = DEFAULT_LEVEL
    min_count: int = 32
    tables: Mapping[str, Rules] = field(default_factory=lambda: PRESETS[DEFAULT_LEVEL])
    noise: NoiseBudget = NoiseBudget()

    def rule(self, table: str, column: str) -> ColumnRule:
        return self.tables.get(table, {}).get(column, DROP)

    def least(self, rule: ColumnRule) -> int:
        """How many samples have to be behind a number about the data."""
        return max(rule.least, 0) if rule.least else self.min_count

    def allows(self, table: str) -> bool:
        """Whether rows of a table leave at all: some column does beside the shared ones."""
        shared = set(_CONTEXT)
        return any(rule.way != "drop" for name, rule in self.tables.get(table, {}).items() if name not in shared)

    def withholds(self) -> dict[str, list[str]]:
        """The columns that stay or leave with noise alone, by table; ["*"] where no row of it leaves."""
        found: dict[str, list[str]] = {}
        for table in _TABLES.values():
            if not self.allows(table.name):
                found[table.name] = ["*"]
                continue
            kept = [one.name for one in table.columns if self.rule(table.name, one.name).way in ("drop", "noise")]
            if kept:
                found[table.name] = kept
        return found

    @property
    def stamp(self) -> list[Any]:
        """Level, whether it is as preset, and a digest of all rules: kept with rows that were let through."""
        rules = {
            table: {name: [rule.way, rule.digits, rule.low, rule.high, rule.least] for name, rule in rules.items()}
            for table, rules in self.tables.items()
        }
        content = json.dumps([rules, self.min_count, asdict(self.noise)], sort_keys=True).encode()
        is_preset = self.tables == PRESETS[self.level]
        return [self.level, is_preset, hashlib.blake2b(content, digest_size=16).hexdigest()]

    def covers(self, stamp: Any) -> bool:
        """Whether rows may still leave that a policy of that stamp has let through; unknown ones may."""
        if stamp is None or self.level == "L4" or stamp == self.stamp:
            return True
        level, is_preset = (*stamp, None, None)[:2] if isinstance(stamp, list) else (None, None)
        return level == "L1" and is_preset is True and self.level in ("L2", "L3") and self.stamp[1]


NOTHING = Policy("L0", 32, {})


def parse_policy(text: str, now_s: float | None = None) -> Policy:
    """Read a site's file; UsageError, with the word that is wrong, if it cannot be understood."""
    try:
        content = toml_in(text)
    except ValueError as error:
        raise UsageError(f"the policy is not TOML: {error}", hint="see docs/privacy.md") from None
    unknown = sorted(set(content) - set(_SETTINGS))
    if unknown:
        raise UsageError(f"the policy has no setting {unknown[0]!r}", hint=f"settings: {', '.join(_SETTINGS)}")
    level = _level_in(content, time.time() if now_s is None else now_s)
    min_count = content.get("min_count", 32)
    if not _is_count(min_count):
        raise UsageError(f"min_count = {min_count!r}", hint="write a number of samples, as 32")
    tables = {name: dict(rules) for name, rules in PRESETS[level].items()}
    changes = content.get("tables", {})
    if not isinstance(changes, dict):
        raise UsageError("`tables` is not a table", hint='write [tables.steps], then column = "keep"')
    for name, rules in changes.items():
        _change(tables, name, rules)
    return Policy(level, min_count, tables, _noise_in(content.get("noise", {})))


def _level_in(content: Mapping[str, Any], now_s: float) -> Level:
    given = content.get("level", DEFAULT_LEVEL)
    if given not in LEVELS:
        raise UsageError(f"no level {given!r}", hint=f"levels: {', '.join(LEVELS)}")
    if "grant_until" in content and _left_s(content["grant_until"], "grant_until", now_s) > 0:
        return "L4"
    if given != "L4":
        return given  # type: ignore[no-any-return]
    if "until" not in content:
        raise UsageError("level L4 needs `until`, a date and time", hint="or use `stethos policy --grant-hours 8`")
    return "L4" if _left_s(content["until"], "until", now_s) > 0 else DEFAULT_LEVEL


def _left_s(until: Any, name: str, now_s: float) -> float:
    """How long a grant still holds; UsageError if it is no time, or too far away."""
    try:
        left_s = float(until.timestamp()) - now_s
    except (AttributeError, ValueError, OverflowError):
        raise UsageError(f"{name} = {until} is not a date and time", hint="`stethos policy --grant-hours 8`") from None
    if left_s > LONGEST_GRANT_S:
        raise UsageError("level L4 is for at most 24 hours", hint=f"choose an earlier `{name}`")
    return left_s


def _noise_in(given: Any) -> NoiseBudget:
    limits = {"epsilon": (1e-6, 10.0), "delta": (1e-12, 1e-3), "releases": (1, 10**6), "classes": (0, 1000)}
    if not isinstance(given, dict) or set(given) - set(limits):
        raise UsageError("[noise] is not understood", hint=f"settings: {', '.join(limits)}")
    for name, value in given.items():
        low, high = limits[name]
        is_count = isinstance(low, int)
        if isinstance(value, bool) or not isinstance(value, int if is_count else int | float):
            raise UsageError(f"noise.{name} = {value!r} is not a number", hint="see docs/privacy.md")
        if not low <= value <= high:
            raise UsageError(f"noise.{name} = {value!r}", hint=f"from {low:g} to {high:g}")
    return NoiseBudget(**given)


def _change(tables: dict[str, dict[str, ColumnRule]], name: str, rules: Any) -> None:
    table = _TABLES.get(name)
    if table is None:
        raise UsageError(f"no table {name!r} is sent", hint=f"tables: {', '.join(sorted(_TABLES))}")
    if rules == "drop":
        tables.pop(name, None)
        return
    if not isinstance(rules, dict):
        raise UsageError(f"[tables.{name}] is not a table", hint='write column = "keep"')
    kinds = {column.name: column.kind for column in table.all_columns}
    own = tables.setdefault(name, dict(_CONTEXT if "client" in kinds else {"t_ns": SECOND}))
    for column, words in rules.items():
        if column not in kinds:
            raise UsageError(f"`{name}` has no column {column!r}", hint=f"columns: {', '.join(kinds)}")
        own[column] = NOISE if words == "noise" else _rule_of(f"{name}.{column}", kinds[column], words)
        if _needs_samples(own[column]) and "samples" not in kinds:
            raise UsageError(
                f"no row of `{name}` says how many samples are behind {column}",
                hint=f"add min_count = 0 to the rule of {column}: then it leaves whatever they are",
            )
        if own[column] is NOISE and column not in NOISED.get(name, ()):
            raise UsageError(f"what one sample changes in {name}.{column} is not bounded", hint="no noise can hide it")


def _rule_of(where: str, kind: Kind, words: Any) -> ColumnRule:
    hint = 'write "keep", "drop", "bucket" or {digits = 2, clip = [-10.0, 10.0], min_count = 64}'
    is_number = kind not in (Kind.NAME, Kind.TEXT)
    match words:
        case "keep" | "drop":
            return ColumnRule(words)
        case "bucket" if is_number:
            return BUCKET
        case {"digits": int() as digits, **rest} if (
            is_number and 1 <= digits <= 6 and set(rest) <= {"clip", "min_count"}
        ):
            clip: Any = rest.get("clip", [-1e6, 1e6])
            least: Any = rest.get("min_count")
            is_clip = isinstance(clip, list) and len(clip) == 2 and all(map(_is_bound, clip))
            if is_clip and (least is None or _is_count(least, lowest=0)):
                own_least = 0 if least is None else least or NO_LEAST
                return ColumnRule("round", digits, float(clip[0]), float(clip[1]), own_least)
    raise UsageError(f"{where} = {words!r} is not a rule", hint=hint)


def _is_count(one: Any, lowest: int = 1) -> bool:
    return type(one) is int and lowest <= one <= 10**9


def _needs_samples(rule: ColumnRule) -> bool:
    return rule.way == "round" and rule.least != NO_LEAST


def _is_bound(one: Any) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool) and abs(one) <= sys.float_info.max


def leaves_page() -> str:
    """What leaves at each level, as a table of Markdown; the page about privacy holds it."""
    lines = ["| table | column | " + " | ".join(LEVELS) + " |", "|---|---|" + "---|" * len(LEVELS)]
    for table in _TABLES.values():
        for column in table.all_columns:
            if column.name in ("process", "rank"):
                continue
            ways = [PRESETS[level].get(table.name, {}).get(column.name, DROP).way for level in LEVELS]
            if any(way != "drop" for way in ways[:-1]):
                lines.append(f"| `{table.name}` | `{column.name}` | " + " | ".join(map(_cell, ways)) + " |")
    closed = [f"`{name}`" for name in _TABLES if not any(name in PRESETS[level] for level in LEVELS[:-1])]
    lines += ["", f"Rows of these tables leave at L4 only: {', '.join(closed)}."]
    return "\n".join(lines) + "\n"


def _cell(way: Way) -> str:
    return "-" if way == "drop" else way
