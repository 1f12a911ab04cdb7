"""Which texts may be twins, whatever their embeddings say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from selector.neighbours.wording import checksum, plain, signature

_SAME = [
    (r"Find the area of \(ABCD\) if \( AB = 5 \).", "What is the area of $A B C D$ if $AB=5$?"),
    (r"Compute $\dfrac{1}{3} \times x^{2}$.", r"Determine \[\frac{1}{3} \times x^2\]."),
    ("How many prime numbers are\nbelow 1,000? ", "How many prime numbers are below 1,000?"),
    (r"Given $x_{}$, find the maximum of $f(x)$.", "Given $x$, determine the maximum of $f(x)$."),
    (r"If $x \geqslant 0$, then find $\left( x + 1 \right)^{2}$.", r"If $x\geq 0$, then calculate $(x+1)^2$."),
    (r"On edge $A_{1} D_{1}$ of $A B C D A_{1}$", r"On edge \(A_1 D_1\) of \(ABCDA_1\)"),
    (r"Let $a, b$ be \(\sin x\).", r"Let \(a,b\) be $\sin  x$."),
]
_OTHER = [
    ("What is 2+3?", "What is 2+4?"),
    ("What is 2+3?", "What is 2-3?"),
    ("What is 23?", "What is 2 3?"),
    ("What is $23$?", "What is $2 3$?"),
    ("What is (2+3)*4?", "What is 2+(3*4)?"),
    ("Differentiate $e^{2x+1}$.", "Differentiate $e^{2x}+1$."),
    ("What is $x^{2}3$?", "What is $x^{23}$?"),
    ("What is $x^{12}$?", "What is $x^12$?"),
    ("What is 8-(3-2)?", "What is 8-3-2?"),
    ("Flatten [[1, 2], [3]]", "Flatten [[1], [2, 3]]"),
    ("Convert 101 from binary to decimal.", "Convert 101 to binary from decimal."),
    ("Join {1,2},{3}", "Join {1},{2,3}"),
    ("What is s after s = 'a' + b?", "What is s after s = a + 'b'?"),
    ("Find f'(2).", "Find f(2)."),
    ("Find $f'(2)$.", "Find $f(2)$."),
    ("What is the sum of [1,200,300]?", "What is the sum of [1200,300]?"),
    ("What is the sum of $[1,200,300]$?", "What is the sum of $[1, 200,300]$?"),
    ("What is g(2.5)?", "What is g(2,5)?"),
    ("What is $g(2.5)$?", "What is $g(2,5)$?"),
    ("What is $g(2,5)$?", "What is $g(2, 5)$?"),
    ("What is 5!", "What is 5?"),
    ("What is $A B C$?", "What is $AB C$?"),
    ("What is $A b$?", "What is $ab$?"),
    (r"What is $\cos x$?", r"What is $\cosx$?"),
    ("What costs $5, or $6 with tax?", "What costs 5, or 6 with tax?"),
    ("echo $x; echo $y", "echo x; echo y"),
    (r"Find \[x\]", "Find [x]"),
    (r"Find the set $\{1\}$.", r"Find the set $1$."),
    ("Find the largest x.", "Find the smallest x."),
    ("Find f(x) at 0.", "Find f(y) at 0."),
    ("Is it a prime?", "Is it not a prime?"),
    ("There are 26 members; how many girls are there?", "There are 26 members; how many boys are there?"),
    ("Sort the letters of ABBA.", "Sort the letters of BAAB."),
    ("| . | B |", "| B | . |"),
    ("_ Q _", "Q _ _"),
    ("_ Q .", "_ Q _ ."),
    ("Decode 😶🙃", "Decode 🙃😶"),
    ("Decode 😶\u200b", "Decode 😶"),
    ("Spell this word backward: the", "Spell this word backward: will"),
    ("Spell this word backward: his", "Spell this word backward: His"),
    ("Spell find backward", "Spell compute backward"),
    ('How long is "find the" in letters?', 'How long is "compute the" in letters?'),
    ("Put in order: not did the", "Put in order: did not the"),
    ("Put the words in order, find, compute", "Put the words in order, compute, find"),
    ("Which of the ladders leads from the to cat?", "Which of the ladders leads from an to cat?"),
    ("Находится ли точка 5 внутри?", "Находится ли точка 5 снаружи?"),
]


@pytest.mark.parametrize(("left", "right"), _SAME)
def test_another_way_to_put_a_question_reads_the_same(left: str, right: str) -> None:
    assert signature(left) == signature(right)
    assert checksum(left) == checksum(right)


@pytest.mark.parametrize(("left", "right"), _OTHER)
def test_another_question_reads_otherwise(left: str, right: str) -> None:
    assert signature(left) != signature(right)
    assert plain(left) != plain(right)


def test_white_space_that_lays_a_text_out_counts() -> None:
    assert plain("if x:\n    y\n    z") != plain("if x:\n    y\nz")
    assert plain("# #\n#  #") != plain("#  #\n# #")
    assert plain("How long is 'a  b'?") != plain("How long is 'a b'?")
    assert plain("What  is 2+3?") == plain(" What\nis\u00a02+3? \n")


def test_the_checksum_holds_for_any_white_space_and_tells_other_questions_apart() -> None:
    assert checksum("a\u00a0b\u3000c\u2003d\x1ce") == checksum("a b c d e") == checksum("a\nb\tc\r\nd e")
    texts = [f"Is {i} + {j} большe 千{chr(0x5000 + i)}?" for i in range(30) for j in range(30)]
    assert len({checksum(text) for text in texts}) == len(texts)


def test_formulas_of_several_lines_are_formulas() -> None:
    text = r"Solve \[\begin{aligned} x &%s 1 \\[4pt] y &%s 2 \end{aligned}\] and \( a \\(b) %s c \)."
    assert signature(text % (("\\geq",) * 3)) == signature(text % (("\\ge",) * 3))


_PARTS = [
    "\\(",
    "\\[",
    "\\( \\[",
    "\\)\\(",
    "\\\\[",
    "$",
    "$a",
    "a$ ",
    "$a b ",
    "^{}",
    "_",
    "\\",
    "find ",
    ". ",
    "A ",
    " \n",
    '"',
]


def test_a_quarter_megabyte_of_openers_is_read_once() -> None:
    """Read from each of them to the end they would take an hour: the limit is for giving up, not for being slow."""
    script = (
        "import sys\nfrom selector.neighbours.wording import signature\n"
        "for part in sys.argv[1:]:\n    signature(f'x{part * (2**18 // len(part))}y')\n"
    )
    subprocess.run([sys.executable, "-c", script, *_PARTS], check=True, timeout=600)
