"""What the pages name is there, and the check notices what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_docs import ROOT, _commands, pages, wrong
from selector.cli.commands import cli


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_names_is_there(page: Path) -> None:
    assert list(wrong(page)) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("See [there](other.md).", "other.md: there is no such file"),
        ("![A picture](images/none.png)", "images/none.png: there is no such file"),
        ("See [there](#nowhere).", "#nowhere: there is no such heading"),
        ("See [`there`](page.md#b-heading).", "page.md#b-heading: there is no such heading"),
        ("`python -m bench.nothing --json F`", "python -m bench.nothing: there is no such module"),
        ("```sh\nmake nothing N=1\n```", "make nothing: there is no such target"),
        ("```sh\n.venv/bin/selector nothing\n```", "selector nothing: there is no such command"),
    ],
)
def test_what_is_not_there_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("test:\n")
    fine = "# A heading\n\n[a](#a-heading), [b](https://example.org/x#y), `make test`, `selector serve`\n\n"
    page = tmp_path / "page.md"
    page.write_text(fine)
    assert list(wrong(page, tmp_path)) == []
    page.write_text(fine + text)
    (found,) = wrong(page, tmp_path)
    assert found.endswith(says)


def test_plain_python_will_do() -> None:
    """Without what is installed, as ``make docs`` runs it."""
    command = [sys.executable, "-I", "-S", str(ROOT / "scripts" / "check_docs.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _commands() == set(cli.commands)
