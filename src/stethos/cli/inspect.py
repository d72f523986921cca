"""Inspect a weights file: keys, shapes, step, and non-finite values.

    stethos inspect rescue.safetensors
    stethos inspect checkpoint.pt

Reads .safetensors, and .pt and .pth files of torch. Nothing in the file is run: classes and functions that a
pickle names are only listed. The exit status is 1 if there are NaN or infinite values.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text, cut

_SHOWN = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a .safetensors, .pt or .pth file")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.screen.grid import Heading, show_grid
    from stethos.live.weights import read_weights, total_of

    found = read_weights(arguments.file)
    nan, inf = total_of([one.nan for one in found.tensors]), total_of([one.inf for one in found.tensors])
    if arguments.json:
        print_json({
            "format": found.format, "step": found.step, "keys": found.keys, "nan": nan, "inf": inf,
            "tensors": [
                {"name": one.name, "dtype": one.kind, "shape": one.shape, "nan": one.nan, "inf": one.inf}
                for one in found.tensors
            ],
            "values": found.values, "imports": found.imports,
        })  # fmt: skip
        return 1 if nan or inf else 0
    step = f", step {count_text(found.step)}" if found.step is not None else ""
    elements = sum(one.size for one in found.tensors)
    held = f"{count_text(len(found.tensors))} tensors, {count_text(elements)} elements"
    print(f"{clean(str(arguments.file))}: {found.format}{step}, {held}")
    if found.keys and len(found.keys) <= 20:
        print(f"keys: {', '.join(cut(clean(key), 60) for key in found.keys)}")
    rows = [
        [clean(one.name), one.kind, "x".join(map(str, one.shape)) or "scalar", _odd(one.nan), _odd(one.inf)]
        for one in found.tensors[:_SHOWN]
    ]
    if rows:
        show_grid(
            (Heading("tensor"), Heading("kind"), Heading("shape"), Heading("NaN", True), Heading("Inf", True)), rows
        )
    if len(found.tensors) > _SHOWN:
        print(f"... and {len(found.tensors) - _SHOWN:,} more; --json shows all")
    for name, value in list(found.values.items())[:40]:
        print(f"{clean(name)} = {cut(clean(repr(value)), 100)}")
    if found.imports:
        print(f"it names, and would run if it were loaded with pickle: {', '.join(map(clean, found.imports[:20]))}")
    if nan or inf:
        print(f"not finite: {nan:,} NaN and {inf:,} infinite elements")
    return 1 if nan or inf else 0


def _odd(count: Any) -> str:
    return "-" if count is None else f"{count:,}"
