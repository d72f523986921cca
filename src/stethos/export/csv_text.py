"""Text that a spreadsheet takes for text: no formula, no control character."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# The same for Python and for RE2: control characters but line ends and tabs, and marks that reorder text or are not
# seen at all.
_CONTROL = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_FORMULA = "^[\n=+\\-@\t\uff1d\uff0b\uff0d\uff20]"
_NUMBER = "^[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def plain_text(text: str) -> str:
    """A cell as a spreadsheet shows it and does not run it: a formula gets an apostrophe in front."""
    text = re.sub(_CONTROL, "", text)
    return f"'{text}" if re.match(_FORMULA, text) and not re.match(_NUMBER, text) else text


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the texts of all its columns made plain."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for column in batch.columns:
        if pa.types.is_string(column.type):
            column = pc.replace_substring_regex(column, _CONTROL, "")
            is_formula = pc.and_not(
                pc.match_substring_regex(column, _FORMULA), pc.match_substring_regex(column, _NUMBER)
            )
            column = pc.if_else(is_formula, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
