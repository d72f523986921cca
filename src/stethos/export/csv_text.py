"""Text that a spreadsheet takes for text: no formula, no control character."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stethos.unseen import NEEDLESS, UNSEEN, without_needless

if TYPE_CHECKING:
    import pyarrow as pa

# The same for Python and for RE2: control characters but line ends and tabs, and marks that are not seen.
_CONTROL = f"[\x00-\x08\x0b-\x1f\x7f-\x9f{UNSEEN}]"
_FORMULA = "^[\n=+\\-@\t\uff1d\uff0b\uff0d\uff20]"
_APART = '[,;\t\r\n"]'
_QUOTE = '"'
_NUMBER = "^[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def plain_text(text: str) -> str:
    """A cell as a spreadsheet shows it and does not run it: a formula gets an apostrophe in front."""
    text = without_needless(re.sub(_CONTROL, "", text))
    return f"'{text}" if re.match(_FORMULA, text) and not re.match(_NUMBER, text) else text


def csv_line(cells: Iterable[str]) -> str:
    """One line of a file. A spreadsheet of another country splits at semicolons or tabs, so these are quoted, too."""
    texts = [f'"{cell.replace(_QUOTE, _QUOTE * 2)}"' if re.search(_APART, cell) else cell for cell in cells]
    return ",".join(texts) if texts != [""] else _QUOTE * 2


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the texts of all its columns made plain."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for column in batch.columns:
        if pa.types.is_string(column.type):
            for pattern, instead in ((_CONTROL, ""), *NEEDLESS):
                column = pc.replace_substring_regex(column, pattern, instead)
            is_formula = pc.and_not(
                pc.match_substring_regex(column, _FORMULA), pc.match_substring_regex(column, _NUMBER)
            )
            column = pc.if_else(is_formula, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
