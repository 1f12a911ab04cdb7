"""Table, pictures and page, also when arms never reached the target or ran with a single seed."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from selector.picture_style import DARK, LIGHT, Theme
from selector.testbed.pictures import difficulty_picture, learning_picture
from selector.testbed.record import ArmRun
from selector.testbed.report import render, verdict
from selector.testbed.table import COLUMNS, figures, rows, text_table
from tests.testbed.runs import run_of

RISING = [0.25, 0.35, 0.42, 0.48, 0.52, 0.54, 0.55]
FASTER = [0.25, 0.45, 0.54, 0.56, 0.57, 0.57, 0.58]
FLAT = [0.25, 0.27, 0.28, 0.30, 0.31, 0.32, 0.33]


def runs_of(seeds: int) -> list[ArmRun]:
    return [
        run_of(arm, course, seed, rollouts)
        for seed in range(seeds)
        for arm, course, rollouts in [
            ("uniform", RISING, 512),
            ("paper", FLAT, 1280),
            ("default", FASTER, 512),
            ("oracle", FASTER, 512),
        ]
    ]


class _Outline(HTMLParser):
    """Checks that tags are closed in order, and collects cells and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.sources += [value for name in ("src", "srcset") if (value := values.get(name))]
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_stands_alone_and_names_arms_that_never_arrived(seeds: int) -> None:
    runs = runs_of(seeds)
    page = render(runs, {"Policy": "<0.1M> & small"}, ["selector demo --output 'a & b'"])
    outline = _Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.cells.count("not reached") == 1 + seeds
    assert len(outline.sources) == 4
    assert not re.search(r"(?:src|href|url\()\W*https?:", page)
    for source in outline.sources:
        png = Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"))))
        assert png.width >= 800
    assert "<0.1M>" not in page
    assert "&lt;0.1M&gt; &amp; small" in page


def test_the_verdict_counts_seeds_that_did_not_get_there() -> None:
    runs = [*runs_of(1), run_of("uniform", RISING, 1), run_of("default", FLAT, 1)]
    text = verdict(runs)
    assert "Paper did not reach that with any seed" in text
    assert "Default got there with 1 of 2 seeds on 0.67 times uniform's rollouts" in text
    assert "mean of 2 seeds" in text


def test_the_table_is_aligned_and_has_a_row_per_arm() -> None:
    runs = runs_of(2)
    lines = text_table(runs).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[0] for line in lines[-4:]] == ["uniform", "paper", "default", "oracle"]
    assert all(len(row) == len(COLUMNS) for row in rows(runs))
    assert lines[-3].count("not reached") == 1


def test_the_figures_are_json_and_keep_every_evaluation() -> None:
    found = json.loads(json.dumps(figures(runs_of(2)), allow_nan=False))
    assert found["arms"]["paper"]["to_uniform_final"] == {"seeds": 2, "rollouts": [], "ratios": []}
    assert len(found["runs"]) == 8
    assert [e["accuracy"] for e in found["runs"][0]["evaluations"]] == RISING


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_pictures_are_drawn_on_the_background_of_their_theme(theme: Theme) -> None:
    wanted = tuple(int(theme.background[i : i + 2], 16) for i in (1, 3, 5))
    for draw in (learning_picture, difficulty_picture):
        picture = Image.open(io.BytesIO(draw(runs_of(2), theme))).convert("RGB")
        assert picture.getpixel((0, 0)) == wanted
        assert len(picture.getcolors(picture.width * picture.height) or []) > 10


def test_predictions_that_never_vary_still_make_a_picture() -> None:
    constant = run_of("paper", FLAT)
    constant.predicted[:] = 0.5
    assert difficulty_picture([constant], LIGHT)
    assert constant.selected_correlation is None
