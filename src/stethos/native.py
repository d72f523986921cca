"""The part of the hot path that is written in C, where it could be built; see `_hot.c`.

What is built is chosen once, when this module is loaded. Without it everything works the same, from the same classes,
at a higher price in every step; `STETHOS_NATIVE=0` asks for that.

What C and Python share is described here once: `FIELDS` are the attributes that both read and write, and the row of
`steps` is that of `schema.py`. `hatch_build.py` makes `_hot.h` of it.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from types import ModuleType
from typing import TYPE_CHECKING

from stethos.schema import NULL_F64_BITS, STEPS
from stethos.settings import is_native_allowed

_INTERFACE = 4  # to be raised with a change of `_hot.c` that Python has to know of, and that is not in `_hot.h`
MOST_AHEAD = 64  # batches that may come before a backward follows the first

# Attributes by class and kind. A kind that is a class: an object of it, or None.
FIELDS: dict[str, dict[str, str]] = {
    "Alarm": {"f64": "low high"},
    "Watched": {
        "object": "optimizer turn",
        "Alarm": "alarm",
        "i32": "client round number model local_step",
        "i64": "backwards_seen allocated_bytes",
    },
    "Iteration": {
        "Watched": "watched",
        "object": "scaled pending device_mark pace",
        "row": " ".join(STEPS.slot_fields),
        "i64": "account_at_ns accounted_ns backwards_before backwards_ever batch_data_ns batch_source "
        "closure_backwards completed counted depth last_end_ns mark_ns optimizer_start_ns owner spent_ns",
        "bool": "has_stepped in_backward is_traced",
    },
    "Iterations": {"Iteration": "home", "u64": "home_thread"},
    "Session": {"object": "ring", "i64": "steps offset_ns"},
    "Recorder": {
        "object": "next_step_call ring",
        "Slots": "slots",
        "i64": "peak_bytes next_step sample_at",
        "bool": "is_active",
    },
}
_C_TYPES = {
    "f64": ("double", "T_DOUBLE"), "i32": ("int32_t", "T_INT"), "i64": ("int64_t", "T_LONGLONG"),
    "u64": ("uint64_t", "T_ULONGLONG"), "object": ("PyObject *", "T_OBJECT"), "bool": ("char", ""),
    "d": ("double", "T_DOUBLE"), "i": ("int32_t", "T_INT"), "q": ("int64_t", "T_LONGLONG"),
    "H": ("uint16_t", "T_USHORT"), "b": ("int8_t", "T_BYTE"),
}  # fmt: skip
_ONLY_C = {"Iteration": "    int batches_ahead;\n    int64_t ahead[MOST_AHEAD]; /* samples of each, oldest first */\n"}


def c_header() -> str:
    """The structures of `FIELDS` and the row of `steps`, in C."""
    row = STEPS.slot_fields
    text = "/* Made by hatch_build.py from native.py and schema.py. */\n"
    text += f"#define INTERFACE {_INTERFACE}\n#define MOST_AHEAD {MOST_AHEAD}\n"
    text += f"#define NULL_BITS INT64_C({NULL_F64_BITS:#x})\n\ntypedef struct Slots Slots;\n\ntypedef struct {{\n"
    text += "".join(f"    {_C_TYPES[code][0]} {name};\n" for name, code in row.items()) + "} StepRow;\n"
    text += "".join(map(_c_type, FIELDS))
    return f"{text}\n#define LAYOUT {zlib.crc32(text.encode())}u\n"


def _c_type(name: str) -> str:
    """A class of `FIELDS`: its structure, its attributes in Python, and its objects for the collector."""
    fields = [(kind, field) for kind, listed in FIELDS[name].items() for field in listed.split()]
    body = members = others = objects = ""
    for kind, field in fields:
        if kind == "row":
            members += (
                f'    {{"{field}", {_C_TYPES[STEPS.slot_fields[field]][1]}, offsetof({name}, row.{field}), 0, NULL}},\n'
            )
            continue
        body += f"    {_C_TYPES[kind][0] if kind in _C_TYPES else kind + ' *'} {field};\n"
        objects += f" on(self->{field});" if kind == "object" or kind not in _C_TYPES else ""
        if kind == "bool":
            others += f"    TRUTH({name}, {field}),\n"
        elif kind in _C_TYPES:
            members += f'    {{"{field}", {_C_TYPES[kind][1]}, offsetof({name}, {field}), 0, NULL}},\n'
        else:
            others += f"    OWN({name}, {field}, {kind.lower()}),\n"
    body += ("    StepRow row;\n" if "row" in FIELDS[name] else "") + _ONLY_C.get(name, "")
    return (
        f"\ntypedef struct {{\n    PyObject_HEAD\n{body}}} {name};\n#define {name}_MEMBERS \\\n{_joined(members)}"
        f"#define {name}_GETSET \\\n{_joined(others)}#define {name}_OBJECTS(on){objects}\n"
    )


def _joined(lines: str) -> str:
    return lines.replace("\n", " \\\n")[:-2] + "\n" if lines else "\n"


def _load() -> tuple[ModuleType | None, str]:
    """The built module, or None and why not."""
    if not is_native_allowed():
        return None, "STETHOS_NATIVE=0"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "this Python has no GIL"
    try:
        module = importlib.import_module("stethos._hot")
    except ImportError as error:
        return None, "not built here: no C compiler" if isinstance(error, ModuleNotFoundError) else str(error)[:200]
    if getattr(module, "INTERFACE", 0) != _INTERFACE or f"LAYOUT {module.LAYOUT}u" not in c_header():
        return None, "built from another version: install Stethos again"
    return module, ""


NATIVE, WHY_NOT = _load()


class _Plain:
    """A class without fields of its own."""

    __slots__ = ()


def own_slots(name: str) -> tuple[str, ...]:
    """The attributes of `FIELDS` that a class has to declare itself: all of them without C."""
    return () if NATIVE is not None else tuple(" ".join(FIELDS[name].values()).split())


# Bases with the fields that the callbacks in C read and write; in Python a class has its own attributes.
if TYPE_CHECKING or NATIVE is None:
    AlarmFields = _Plain
    IterationFields = _Plain
    IterationsFields = _Plain
    SessionFields = _Plain
    RecorderFields = _Plain
    WatchedFields = _Plain
else:
    AlarmFields, WatchedFields = NATIVE.AlarmFields, NATIVE.WatchedFields
    IterationFields, IterationsFields = NATIVE.IterationFields, NATIVE.IterationsFields
    SessionFields, RecorderFields = NATIVE.SessionFields, NATIVE.RecorderFields


def described() -> str:
    """Which of the two is in use, in words."""
    return "C" if NATIVE is not None else f"Python ({WHY_NOT})"
