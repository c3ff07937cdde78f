"""Direct decode: pages of flat numeric columns to numpy arrays, without PyArrow's reader.

Here belongs what the bytes of a column chunk's pages say, where they are simple: numbers without nulls, in plain,
dictionary or split bytes. PyArrow is the reference, and takes whatever is refused here; the two never differ. Never
here: reading the bytes, finding the chunks, and policies for nulls and casts.
"""

from pqindex.decode.columns import (
    DIRECT_CODECS,
    DIRECT_ENCODINGS,
    REASONS,
    TYPE,
    DirectColumn,
    direct_column,
    is_number,
    not_direct,
    reason_of_refusal,
)
from pqindex.decode.decoder import DirectDecoder, DirectRead, Refusal

__all__ = [
    "DIRECT_CODECS",
    "DIRECT_ENCODINGS",
    "REASONS",
    "TYPE",
    "DirectColumn",
    "DirectDecoder",
    "DirectRead",
    "Refusal",
    "direct_column",
    "is_number",
    "not_direct",
    "reason_of_refusal",
]
