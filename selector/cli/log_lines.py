"""Log lines that nothing but the program can begin.

Messages may hold what callers or files say. Control characters in them are escaped, and the further lines of a
traceback are marked, so that no line break or terminal sequence can forge an entry.
"""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_MARK = "\n  | "


class LogLines(logging.Formatter):
    """A formatter with one line per record, and marked ones for its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        # Marked from its first line on; the record's own line break comes before it.
        return _MARK.removeprefix("\n") + _MARK.join(_escaped(line) for line in text.split("\n"))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
