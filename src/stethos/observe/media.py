"""Texts, images, tables and histograms by step, small and few: rows of `media`."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from stethos.guard import text_of, tried
from stethos.observe.session import Session
from stethos.record.layout import LARGEST_TEXT
from stethos.redact import MASK, names_secret, redact, redact_under
from stethos.schema import MEDIA

BUCKETS = 16
MOST_ROWS = 2_000  # of one process
LARGEST_SIDE = 160  # pixels of an image
_MOST_CHARACTERS = 8_000
_MOST_TABLE_ROWS = 100
_TEXT_COLUMNS = ("token", "tokens")  # of a text
_MOST_NUMBERS = 1 << 20  # of a histogram: above it every n-th


class MediaWriter:
    """Writes rows of `media` for one session; called where the program logs them, never in a step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._noted: set[str] = set()

    def attempt(self, put: Callable[..., object], name: str, *given: Any) -> bool:
        """Put what somebody gave under a name; False if it is not of the kind, or cannot be read.

        A value that cannot be read, however often it comes, must cost nothing but itself.
        """
        told, error = tried(put, name, *given)
        if error is not None:
            self._note(name, f"{type(error).__name__}: {text_of(error)[:200]}")
        return error is None and told is not False

    def _note(self, name: str, why: str) -> None:
        """Say once for each name what is missing."""
        if name not in self._noted and len(self._noted) < MOST_ROWS:
            self._noted.add(name)
            self._session.note_gap("media", f"{name}: {why}")

    def put(self, kind: str, name: str, content: str, step: Any = None) -> None:
        """A row, unless there are too many already or it is too large: then the run says so."""
        self._count += 1
        if self._count > MOST_ROWS or len(content) > LARGEST_TEXT:
            if self._count == MOST_ROWS + 1 or len(content) > LARGEST_TEXT:
                self._note(name, "too large" if len(content) > LARGEST_TEXT else f"more than {MOST_ROWS:,} rows")
            return
        name_id = self._session.name_id
        ids = b"".join(name_id(text).to_bytes(4, "little", signed=True) for text in (name, kind))
        at = int(step) if isinstance(step, int) and 0 <= step < 1 << 62 else None
        self._session.put_frame(MEDIA.number, ids, b"", (content,), step=at)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is kept; that was said."""
        return self._count > MOST_ROWS

    def put_value(self, name: str, value: Any, step: Any = None) -> bool:
        """A text, an image, a table or a histogram, whichever the value is; False if it is none of them.

        Arrays of height x width x channels, or channels x height x width, are images; others are histograms of their
        values. A DataFrame, a list of mappings or a mapping of lists is a table.
        """
        table = None if self.is_full else _table_of(value)
        if self.is_full:
            pass
        elif isinstance(value, str):
            self.put_text(name, value, step)
        elif table is not None:
            self.put_table(name, *table[:2], step, all_rows=table[2])
        elif hasattr(value, "convert") and type(value).__module__.startswith("PIL."):
            self.put_image(name, value.convert("RGB"), step, "HWC")
        elif hasattr(getattr(value, "canvas", None), "buffer_rgba"):  # a figure of matplotlib
            value.canvas.draw()
            self.put_image(name, value.canvas.buffer_rgba(), step, "HWC")
        elif hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 0:
            order = _order_of(tuple(value.shape))
            if order is None:
                self.put_histogram(name, value, step)
            else:
                self.put_image(name, value, step, order)
        else:
            return False
        return True

    def put_text(self, name: str, text: Any, step: Any = None) -> None:
        self.put("text", name, redact_under(name, str(text)[:_MOST_CHARACTERS]), step)

    def put_table(
        self, name: str, columns: list[str], rows: list[list[Any]], step: Any = None, *, all_rows: int | None = None
    ) -> None:
        shown = [_cells_of(columns, row) for row in rows[:_MOST_TABLE_ROWS]]
        content = {
            "columns": [redact(str(column)[:200]) for column in columns],
            "rows": shown,
            "all_rows": all_rows or len(rows),
        }
        self.put("table", name, json.dumps(content, ensure_ascii=False), step)

    def put_histogram(self, name: str, values: Any, step: Any = None) -> None:
        """Counts in 16 buckets of equal width between the smallest and the largest finite value."""
        import numpy as np

        numbers = np.ravel(_array_of(values))
        if numbers.dtype.kind not in "fiub":
            self._note(name, "not real numbers")
            return
        numbers = numbers[:: max(1, -(-len(numbers) // _MOST_NUMBERS))].astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if len(finite) == 0:
            return
        low, high = float(finite.min()), float(finite.max())
        counts = [0] * BUCKETS
        counts[BUCKETS // 2] = len(finite)  # where they are too near one another to be told apart, or too far
        with np.errstate(all="ignore"):
            if np.isfinite(high - low) and (high - low) / BUCKETS > 4 * np.spacing(max(abs(low), abs(high))):
                counts = np.histogram(finite, BUCKETS)[0].tolist()
            elif high == low:
                around = max(0.5, 1e-6 * abs(low))
                low, high = low - around, high + around
        content = {"low": low, "high": high, "counts": counts, "not_finite": len(numbers) - len(finite)}
        self.put("histogram", name, json.dumps(content), step)

    def put_counts(self, name: str, counts: Any, edges: Any, step: Any = None) -> None:
        """A histogram that was counted already, in any number of buckets: spread over 16 of equal width."""
        import numpy as np

        edges, counts = np.asarray(edges, np.float64), np.asarray(counts, np.float64)
        if len(edges) != len(counts) + 1 or not np.isfinite(edges).all() or not (np.diff(edges) >= 0).all():
            self._note(name, "not a histogram")
            return
        until = np.interp(np.linspace(edges[0], edges[-1], BUCKETS + 1), edges, [0.0, *np.cumsum(counts)])
        content = {"low": float(edges[0]), "high": float(edges[-1]), "counts": np.diff(until).round(3).tolist(),
                   "not_finite": 0}  # fmt: skip
        self.put("histogram", name, json.dumps(content), step)

    def put_image(self, name: str, image: Any, step: Any = None, order: str = "CHW") -> None:
        """An image as PNG; a large one is made smaller by leaving pixels out."""
        import numpy as np

        pixels = _array_of(image)
        if order == "HW" or pixels.ndim == 2:
            pixels = pixels[..., None]
        elif order == "CHW":
            pixels = np.moveaxis(pixels, 0, -1)
        if (
            pixels.ndim != 3
            or pixels.shape[-1] not in (1, 3, 4)
            or 0 in pixels.shape
            or pixels.dtype.kind not in "fiub"
        ):
            self._note(name, "not an image of 1, 3 or 4 channels")
            return
        every = max(1, -(-max(pixels.shape[:2]) // LARGEST_SIDE))
        is_whole = np.issubdtype(pixels.dtype, np.integer)
        pixels = np.nan_to_num(pixels[::every, ::every].astype(np.float64))
        if not is_whole:
            pixels = pixels * 255
        self.put("image", name, base64.b64encode(_png(np.clip(pixels, 0, 255).astype(np.uint8))).decode(), step)


def _cells_of(columns: list[str], row: list[Any]) -> list[str]:
    """A row as it is kept: a secret is masked by its form, by its column's name, or in a pair by the first cell."""
    cells = [str(cell)[:200] for cell in row]
    names = [str(column) for column in columns[: len(cells)]] + [""] * (len(cells) - len(columns))
    if len(cells) == 2 and not _names_secret(names[1], cells[1]):
        names[1] = cells[0]
    return [MASK if _names_secret(name, cell) else redact(cell) for name, cell in zip(names, cells, strict=True)]


def _names_secret(name: str, cell: str) -> bool:
    return name.lower() not in _TEXT_COLUMNS and names_secret(name, cell)


def _table_of(value: Any) -> tuple[list[str], list[list[Any]], int] | None:
    """Columns of what is a table, as many of its rows as are kept, and how many it has."""
    most = _MOST_TABLE_ROWS
    if hasattr(value, "itertuples") and hasattr(value, "columns"):  # a DataFrame
        rows = [list(row) for row in value.head(most).itertuples(index=False)]
        return [str(column) for column in value.columns], rows, len(value)
    if isinstance(value, Mapping) and value and all(isinstance(cells, list | tuple) for cells in value.values()):
        count = min(map(len, value.values()))
        rows = [list(row) for row in zip(*(cells[:most] for cells in value.values()), strict=False)]
        return [str(name) for name in value], rows, count
    if isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value[:most]):
        names = list(dict.fromkeys(name for row in value[:most] for name in row))
        return [str(name) for name in names], [[row.get(name) for name in names] for row in value[:most]], len(value)
    return None


def _order_of(shape: tuple[int, ...]) -> str | None:
    """How the axes of an image lie; None if it is not an image."""
    if len(shape) != 3 or min(shape) == 0:
        return None
    return "HWC" if shape[-1] in (3, 4) else "CHW" if shape[0] in (1, 3, 4) else "HWC" if shape[-1] == 1 else None


def _array_of(values: Any) -> Any:
    import numpy as np

    if hasattr(values, "detach"):
        from stethos.observe.statistic import array_of  # not `numpy()`, after which a storage cannot be resized

        if values.is_sparse and values.numel() > _MOST_NUMBERS:
            raise ValueError("a large sparse tensor")
        values = values.detach().to_dense().cpu().resolve_conj().resolve_neg()
        is_short = values.dtype.is_floating_point and values.dtype.itemsize < 4  # NumPy may not have its type
        return array_of(values.float() if is_short else values)
    return np.asarray(values)


def _png(pixels: Any) -> bytes:
    """Bytes of height x width x channels as a PNG file."""
    height, width, channels = pixels.shape
    kind = {1: 0, 3: 2, 4: 6}[channels]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")
