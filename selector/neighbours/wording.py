"""What the texts of twins have in common, whatever a similar embedding says.

Embeddings cannot tell "2+3" from "2+4", one board or one string of a puzzle from another, or the largest from the
smallest. So every character counts, but for what a question can be put with or without:

* white space, but runs of spaces and indentation count in texts of several lines or with data;
* the delimiters of formulas, and inside them spaces between signs, LaTeX's other names of the same sign, and braces
  around a single index or exponent;
* "find", "what is" and their like where a clause begins, with "the" behind them; a last full stop or question mark.

Texts with quotation marks, or a colon, hold data: there, no more than white space is free. The words are English; in
other languages fewer twins are found.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zlib

_LAYOUT = re.compile(r"[^\S\n]{2,}|\n[^\S\n]")
_DATA = re.compile(r"[\"`“”‘]|(?<!\w)'|:\s")
# A dollar sign that is a price, or a variable of a shell, stands beside a letter, a digit or a space on the wrong side.
# No formula holds the delimiter of another one, so that a text full of openers is read once and not once from each. A
# line break, two backslashes, may stand before a bracket.
_FORMULA = re.compile(
    r"""
    (?<![\w$\\]) \${1,2} ([^\s$\\]|[^\s$][^$]*?[^\s$\\]) \${1,2} (?![\w$])
    | (?<!\\) \\\( ((?:[^\\]|\\[^()])*) \\\) | (?<!\\) \\\[ ((?:[^\\]|\\[^\[\]])*) \\\]
    """,
    re.VERBOSE | re.DOTALL,
)
# Not between letters, digits, or the parts of what may be one number, but between the names of points.
_FREE_SPACE = re.compile(
    r"""
    (?<![\w,.\\]) \s | (?<!\d[,.]) (?<=[,.]) \s | (?<!\\) \s (?!\w)
    | (?<![A-Za-z\\][A-Z]) (?<=[A-Z]) \s (?=[A-Z](?![A-Za-z\d]))
    """,
    re.VERBOSE,
)
_EMPTY_INDEX = re.compile(r"[_^]\{\}(?!\w)")
_BARE = re.compile(r"([_^])([^\W_])(?![^\W_])")
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\left": "", "\\right": "", "\\geq": "\\ge", "\\geqslant": "\\ge",
    "\\leq": "\\le", "\\leqslant": "\\le",
}  # fmt: skip
_COMMAND = re.compile(r"\\[A-Za-z]+")
_ASKS = ("find", "determine", "calculate", "compute", "evaluate", "what is", "what are")
_ASK = re.compile(
    rf"(?:^|(?<=[.,;] )|(?<=\b[aA]nd )|(?<=\b[tT]hen ))(?:{'|'.join(_ASKS)})(?: the)?(?= )", re.IGNORECASE
)
_LAST_STOP = re.compile(r"(?<=[\w)}\]])[.?]$")

# All that two texts with the same signature may differ in is made of these characters.
_SPACES = "".join(character for character in map(chr, range(sys.maxunicode)) if character.isspace())
_WORDS = "".join([*_ASKS, "the", *_SAME, *_SAME.values()])
_CHANGEABLE = bytes(set(f"{_SPACES}{_WORDS}{_WORDS.upper()}$()[]{{}}_^.?".encode()))


def plain(text: str) -> str:
    """The text without white space that means nothing."""
    text = text.strip()
    laid_out = _LAYOUT.search(text) and ("\n" in text or _DATA.search(text))
    return text if laid_out else " ".join(text.split())


def signature(text: str) -> bytes:
    """(16 bytes) the same for texts that are one question but for the ways to put it."""
    read = plain(text)
    if not _DATA.search(read):
        read = _LAST_STOP.sub("", _ASK.sub("\0", _FORMULA.sub(_formula, read)))
    return hashlib.sha256(read.encode()).digest()[:16]


def checksum(text: str) -> int:
    """The same where ``plain`` or ``signature`` is, and nearly always another where they are not; a hundred times
    as fast."""
    return zlib.crc32(text.encode().translate(None, _CHANGEABLE))


def _formula(found: re.Match[str]) -> str:
    formula = next(group for group in found.groups() if group is not None)
    formula = _COMMAND.sub(lambda command: _SAME.get(command[0], command[0]), formula)
    formula = _BARE.sub(r"\1{\2}", _EMPTY_INDEX.sub("", " ".join(formula.split())))
    return _FREE_SPACE.sub("", formula)
