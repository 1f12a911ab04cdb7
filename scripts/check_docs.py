"""Checks what the pages name: ``make docs``. Exit code 1 if something is not there.

Of README.md and everything below docs/: links to files, and to headings in them, pictures included; and of commands in
code, modules after ``python -m``, targets after ``make`` and commands after ``selector``. Addresses on the web are not
looked at. Any Python will do; nothing else is needed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_MODULE = re.compile(r"\bpython -m ((?:bench|tests|selector|trainer_adapters)[\w.]*)")
_TARGET = re.compile(r"(?:^|[\s;])make ([a-z][a-z-]*)", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s/])selector ([a-z][a-z-]*)", re.MULTILINE)


def pages(root: Path = ROOT) -> list[Path]:
    """README.md and those below docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def wrong(page: Path, root: Path = ROOT) -> Iterator[str]:
    """What the page names that is not there."""
    text = page.read_text(encoding="utf-8")
    fences = _FENCE.findall(text)
    prose = _FENCE.sub("", text)
    for target in _LINK.findall(_CODE.sub("", prose)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"link to {target}: there is no such file"
        elif heading and heading not in _anchors(file):
            yield f"link to {target}: there is no such heading"
    code = "\n".join([*_CODE.findall(prose), *fences])
    for module in sorted(set(_MODULE.findall(code))):
        path = root / module.replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            yield f"python -m {module}: there is no such module"
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in sorted(set(_TARGET.findall(code)) - set(targets)):
        yield f"make {target}: there is no such target"
    for command in sorted(set(_COMMAND.findall(code)) - _commands()):
        yield f"selector {command}: there is no such command"


@cache
def _anchors(file: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = _FENCE.sub("", file.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@cache
def _commands() -> set[str]:
    """Read from the source, so that nothing has to be installed for it."""
    source = (ROOT / "selector" / "cli" / "commands.py").read_text(encoding="utf-8")
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
    return {name.id.replace("_", "-") for loop in loops for name in ast.walk(loop.iter) if isinstance(name, ast.Name)}


def main() -> int:
    """Print what is wrong."""
    found = [f"{page.relative_to(ROOT)}: {each}" for page in pages() for each in wrong(page)]
    print("\n".join(found) or f"docs: all links and commands of {len(pages())} pages are there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
