"""What only the values tell: statistics and digests of a full check, attributes, aggregates, and deep verification.

Here belongs whatever reads the pages of a whole source at build, or of a whole index or manifest when it is verified.
Never here: which sequences there are, which `keyruns` and `assemble` say, and how a reader reads them.
"""

from pqindex.content.adding import Content, add_content
from pqindex.content.deep import DeepReport, Recorded, content_of, no_digest, roll_up, verify_content
from pqindex.content.wanted import INDEX_COLUMNS, needs_content, validate_content_options

__all__ = [
    "INDEX_COLUMNS",
    "Content",
    "DeepReport",
    "Recorded",
    "add_content",
    "content_of",
    "needs_content",
    "no_digest",
    "roll_up",
    "validate_content_options",
    "verify_content",
]
