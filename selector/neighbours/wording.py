"""What the texts of twins have in common, whatever a similar embedding says.

Embeddings cannot tell "2+3" from "2+4", one board or one string of a puzzle from another, or the largest from the
smallest. So a text is read as a sequence that must be the same: its numbers, signs, letters of formulas, commands of
LaTeX, and words. Left out are words and marks that a question can be put with or without: articles, "find" and "what
is", the markup of formulas, spaces, most punctuation. Behind a last colon, where tasks have their data, every word
counts. The words are English; in other languages fewer twins are found.
"""

from __future__ import annotations

import hashlib
import re

_GROUPED_DIGITS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TOKEN = re.compile(
    r"""
    \\[A-Za-z]+                                 # a command of LaTeX
    | [A-Z][a-z]+ | [a-z]{2,} | [^\W\d_a-zA-Z][^\W\d_]+ # a word
    | [aA](?=\s[a-z]{2})                        # an article
    | [^\W\d_]                                  # a letter of a formula, or of a string
    | \d+
    | (?<![A-Za-z])- | [+*/^=<>|\#@~&%!]
    | (?<!\S)_(?!\S) | (?<!\S)(?<![\w$)}\]]\ )\.(?!\S)  # empty places of a board
    | [^\x00-\x7f]
    """,
    re.VERBOSE,
)
_COLON = re.compile(r":\s")
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\geq": "≥", "\\ge": "≥", "\\geqslant": "≥", "\\leq": "≤",
    "\\le": "≤", "\\leqslant": "≤", "\\neq": "≠", "\\ne": "≠", "\\times": "×", "\\cdot": "·", "\\circ": "°",
    "\\triangle": "triangle", "\\angle": "angle", "\\pi": "π", "\\theta": "θ", "\\alpha": "α", "\\beta": "β",
    "−": "-", "–": "-", "least": "smallest", "minimum": "smallest", "minimal": "smallest", "greatest": "largest",
    "maximum": "largest", "maximal": "largest",
}  # fmt: skip
_FREE_WORDS = """
    a an the is are be was were been being of in on at to for from by with as and that such so then this these those
    if it its their there which what how many when where also additionally must turns out we you your can could may will
    would do does has have having find determine calculate compute evaluate show give state tell write express answer
    report simplify please given let suppose assume consider say call denote denoted known know following satisfy
    satisfies satisfying hold holds equal equals exists lie made number numbers expression possible value question
    problem respectively
"""
_FREE_MARKS = r"""
    \ldots \cdots \dots \left \right \big \Big \bigg \Bigg \quad \qquad \displaystyle
    \text \mathrm \textbf \mathbf \boldsymbol “ ” ‘ ’ … — ， 。
"""
# Some count as white space, at which the others are told apart.
_INVISIBLE = "\u00a0\u200b\u3000\ufeff"
_FREE = frozenset([*_FREE_WORDS.split(), *_FREE_MARKS.split(), *_INVISIBLE])


def signature(text: str) -> bytes:
    """(16 bytes) the same for texts whose symbols and words agree."""
    plain = _GROUPED_DIGITS.sub("", text)
    data = max((found.end() for found in _COLON.finditer(plain)), default=len(plain))
    tokens = [token for token in map(_read, _TOKEN.findall(plain[:data])) if token not in _FREE]
    tokens += ["", *(_SAME.get(token, token) for token in _TOKEN.findall(plain[data:]))]
    return hashlib.sha256("\0".join(tokens).encode()).digest()[:16]


def _read(token: str) -> str:
    token = _SAME.get(token, token)
    return token.casefold() if len(token) > 1 and token.isalpha() else token
