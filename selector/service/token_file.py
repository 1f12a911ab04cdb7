"""The file of bearer tokens.

As YAML, a list of tokens or of their SHA-256 in hexadecimal, each with its scope::

    tokens:
      - name: operators
        sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b
        scope: admin
      - name: team-a
        token: a-long-random-text
        scope: write
        runs: [team-a-*, shared-run]

``scope`` is ``admin``, ``write`` (which implies read) or ``read``; the latter two need ``runs``, ids or prefixes that
end with ``*``. ``name`` is for people.

Or plain: one token a line, each an admin's; lines that begin with ``#`` are left out. So that no YAML file with an
error in it, or half written, is ever taken for that, a line of a plain file may hold the characters of a bearer token
only, and is not how the other form begins.

Errors say where something is wrong and never what is there: it may be a token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

import yaml

from selector.grants import Grant, Scope, admin, digest_of
from selector.yaml_text import load

# RFC 6750's b64token; what else a header could carry is refused before it turns into a file of another form.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._ @-]{1,64}")
_RUNS = re.compile(r"[A-Za-z0-9._-]{1,128}|[A-Za-z0-9._-]{0,128}\*")
_KEYS = ("name", "token", "sha256", "scope", "runs")

# Shorter ones can be guessed.
_SHORTEST_TOKEN = 16


class TokenFileError(ValueError):
    """A file of tokens that cannot be used."""


class _KeyTwice(yaml.YAMLError):
    """A mapping has a key twice; ``line`` counts from 1."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses what YAML's would take the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if any(count > 1 for count in keys.values()):
            raise _KeyTwice(node.start_mark.line + 1)
        return super().construct_mapping(node, deep)


def parse(content: bytes) -> tuple[Grant, ...]:
    """The grants of a file.

    Raises:
        TokenFileError: it is not of either form, or holds no token.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TokenFileError("it is not UTF-8") from None
    lines = [line.strip() for line in text.splitlines()]
    plain = [line for line in lines if line and not line.startswith("#")]
    if plain and all(_TOKEN.fullmatch(line) and not _begins_a_list(line) for line in plain):
        grants = [admin(token) for token in plain]
    else:
        grants = _listed(_loaded(text))
    if not grants:
        raise TokenFileError("it holds no token")
    if max(Counter(grant.digest for grant in grants).values()) > 1:
        raise TokenFileError("a token is there twice")
    return tuple(grants)


def _begins_a_list(line: str) -> bool:
    return "tokens".startswith(line) or not line.strip("-")


def _loaded(text: str) -> list[Any]:
    try:
        document = load(text, _UniqueKeys)
    except _KeyTwice as error:
        raise TokenFileError(f"line {error.line}: a key is given twice") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise TokenFileError(f"{where}it is neither valid YAML nor one token a line") from None
    except yaml.YAMLError:
        raise TokenFileError("it is neither valid YAML nor one token a line") from None
    if document is None:
        return []
    if not isinstance(document, dict) or set(document) != {"tokens"} or not isinstance(document["tokens"], list | None):
        raise TokenFileError("expected the key 'tokens' with a list, and nothing else, or one token a line")
    return document["tokens"] or []


def _listed(entries: list[Any]) -> list[Grant]:
    return [_grant(entry, f"tokens[{index}]") for index, entry in enumerate(entries)]


def _grant(entry: Any, where: str) -> Grant:
    if not isinstance(entry, dict) or not set(entry) <= set(_KEYS):
        raise TokenFileError(f"{where}: expected a mapping with no other keys than {', '.join(_KEYS)}")
    name = entry.get("name", "")
    if name != "" and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise TokenFileError(f"{where}.name: expected 1 to 64 of A-Z a-z 0-9 . _ @ - and space")
    if ("token" in entry) == ("sha256" in entry):
        raise TokenFileError(f"{where}: expected either token or sha256")
    if "token" in entry:
        token = entry["token"]
        if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise TokenFileError(f"{where}.token: expected a text of A-Z a-z 0-9 . _ ~ + / - with = at its end only")
        if len(token) < _SHORTEST_TOKEN:
            raise TokenFileError(f"{where}.token: expected at least {_SHORTEST_TOKEN} characters; make them at random")
        digest = digest_of(token)
    else:
        if not (isinstance(entry["sha256"], str) and _SHA256.fullmatch(entry["sha256"])):
            raise TokenFileError(f"{where}.sha256: expected 64 hexadecimal digits, in quotes")
        digest = bytes.fromhex(entry["sha256"])
    scopes = {scope.value: scope for scope in Scope}
    scope = scopes.get(str(entry.get("scope")))
    if scope is None:
        raise TokenFileError(f"{where}.scope: expected one of {', '.join(scopes)}")
    return Grant(digest, scope, _runs(entry, scope, where), name)


def _runs(entry: dict[str, Any], scope: Scope, where: str) -> tuple[str, ...]:
    if scope is Scope.ADMIN:
        if "runs" in entry:
            raise TokenFileError(f"{where}.runs: an admin's token holds for all runs; give read or write, or no runs")
        return ()
    runs = entry.get("runs")
    if not isinstance(runs, list) or not runs:
        raise TokenFileError(f"{where}.runs: expected a list of run ids, or of prefixes that end with *")
    for index, pattern in enumerate(runs):
        if not (isinstance(pattern, str) and _RUNS.fullmatch(pattern)):
            raise TokenFileError(
                f"{where}.runs[{index}]: expected a text of A-Z a-z 0-9 . _ - with a * at its end or none"
            )
    return tuple(runs)
