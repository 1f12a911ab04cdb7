"""Every test and every command that the page of guarantees names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from click.testing import CliRunner

from selector.cli.commands import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/\S+?\.py::\w+)`", PAGE)))


def _tests_of(path: Path) -> set[str]:
    """Names of the tests that a module defines."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 60
    # Nothing that looks like a test is written in another way.
    assert len(re.findall(r"tests/\S+?\.py", PAGE)) == len(re.findall(r"`tests/\S+?\.py::\w+`", PAGE))


def test_every_named_test_exists() -> None:
    places = [name.split("::") for name in NAMED]
    there = {path: _tests_of(ROOT / path) for path in {path for path, _ in places} if (ROOT / path).is_file()}
    assert [f"{path}::{test}" for path, test in places if test not in there.get(path, ())] == []


def test_every_promise_stands_beside_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| promise", "| sit"))]
    assert len(rows) > 50
    assert [row for row in rows if "::test_" not in row] == []


def test_named_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([\w-]+)", PAGE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    commands = CliRunner().invoke(cli, ["--help"]).output
    for command in set(re.findall(r"`selector ([\w-]+)", PAGE)):
        assert re.search(rf"^  {command}\b", commands, re.MULTILINE), command
