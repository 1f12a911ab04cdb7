"""The token file: both forms, what is refused and in which words, and its replacement while the service runs."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clients import SelectorClient, Unauthenticated
from selector.grants import Grant, Scope, admin, digest_of
from selector.service import watched_files
from selector.service.server import Server
from selector.service.token_file import TokenFileError, parse
from selector.service.watched_files import WatchedFiles
from selector.settings import ServerSettings
from tests.service.running import InProcessService, ServiceProcess

TEAM = "token-of-team-a-0123"
OPERATORS = "token-of-operators-0"

LISTED = f"""\
tokens:
  - name: operators
    sha256: {digest_of(OPERATORS).hex()}
    scope: admin
  - name: team a
    token: {TEAM}
    scope: write
    runs: [team-a-*, shared]
  - token: token-of-the-dashboard
    scope: read
    runs: ["*"]
"""


def test_a_list_with_scopes() -> None:
    assert parse(LISTED.encode()) == (
        Grant(digest_of(OPERATORS), Scope.ADMIN, (), "operators"),
        Grant(digest_of(TEAM), Scope.WRITE, ("team-a-*", "shared"), "team a"),
        Grant(digest_of("token-of-the-dashboard"), Scope.READ, ("*",), ""),
    )
    assert parse(("---\n# of today\n" + LISTED.replace("\n", "\r\n")).encode("utf-8-sig")) == parse(LISTED.encode())
    assert parse(f'{{"tokens": [{{"token": "{TEAM}", "scope": "admin"}}]}}'.encode()) == (admin(TEAM),)


def test_one_token_a_line() -> None:
    assert parse(b"\n first \n# a comment: of any kind\n\nse+c/o~n.d==\n") == (admin("first"), admin("se+c/o~n.d=="))
    assert parse(b"only") == (admin("only"),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no token"),
        ("# only a comment\n", "no token"),
        ("tokens:\n", "no token"),
        ("tokens: []\n", "no token"),
        ("one two\n", "the key 'tokens'"),
        ("{TEAM}\n{TEAM}\n", "twice"),
        ("tokens: {TEAM}\n", "with a list"),
        ("{TEAM}: x\n", "the key 'tokens'"),
        ("tokens: []\n{TEAM}: []\n", "the key 'tokens'"),
        ("- token: {TEAM}\n", "the key 'tokens'"),
        ("tokens:\n  - {TEAM}\n", "tokens[0]"),
        ("tokens:\n  - {TEAM}: x\n", "tokens[0]"),
        ("tokens:\n\t- token: {TEAM}\n", "line 2, column 1"),
        ("tokens: [{token: {TEAM}\n", "line "),
        ("tokens: *{TEAM}\n", "line 1"),
        ("tokens: !!python/object/apply:os.system [{TEAM}]\n", "line 1"),
        ("tokens:\n  - token: {TEAM}\n    token: {TEAM}\n", "line 2: a key is given twice"),
        ("tokens: []\ntokens: [{TEAM}]\n", "line 1: a key is given twice"),
        ("tokens:\n  - scope: admin\n", "tokens[0]: expected either token or sha256"),
        ("tokens:\n  - token: {TEAM}\n    sha256: {SHA}\n    scope: admin\n", "either token or sha256"),
        ("tokens:\n  - token: {TEAM} x\n    scope: admin\n", "tokens[0].token"),
        ("tokens:\n  - token: 12345678901234567\n    scope: admin\n", "tokens[0].token"),
        ("tokens:\n  - token: too-short\n    scope: admin\n", "at least 16 characters"),
        ("tokens:\n  - sha256: {TEAM}\n    scope: admin\n", "tokens[0].sha256"),
        ("tokens:\n  - token: {TEAM}\n", "tokens[0].scope"),
        ("tokens:\n  - token: {TEAM}\n    scope: root\n", "tokens[0].scope: expected one of read, write, admin"),
        ("tokens:\n  - token: {TEAM}\n    scope: [admin]\n", "tokens[0].scope"),
        ("tokens:\n  - token: {TEAM}\n    scope: admin\n    runs: [a]\n", "tokens[0].runs"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n", "tokens[0].runs"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: []\n", "tokens[0].runs"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: a\n", "tokens[0].runs"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: [a, b*c]\n", "tokens[0].runs[1]"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: ['']\n", "tokens[0].runs[0]"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: ['**']\n", "tokens[0].runs[0]"),
        ("tokens:\n  - token: {TEAM}\n    scope: read\n    runs: [a/b]\n", "tokens[0].runs[0]"),
        ("tokens:\n  - token: {TEAM}\n    scope: admin\n    name: [x]\n", "tokens[0].name"),
        ('tokens:\n  - token: {TEAM}\n    scope: admin\n    name: "a\\nb"\n', "tokens[0].name"),
        ("tokens:\n  - token: {TEAM}\n    scope: admin\n    expires: 2030-01-01\n", "no other keys"),
        ("[" * 450, "valid YAML"),
    ],
)
def test_what_is_wrong_is_named_and_never_shown(content: str, says: str) -> None:
    filled = content.replace("{TEAM}", TEAM).replace("{SHA}", digest_of(TEAM).hex())
    with pytest.raises(TokenFileError) as caught:
        parse(filled.encode())
    assert says in str(caught.value)
    assert TEAM not in str(caught.value) and digest_of(TEAM).hex() not in str(caught.value)
    # What a traceback would show.
    assert caught.value.__cause__ is None and (caught.value.__context__ is None or caught.value.__suppress_context__)


def test_no_half_of_a_list_is_taken_for_tokens_a_line() -> None:
    whole = {grant.digest: grant for grant in parse(LISTED.encode())}
    lines = LISTED.splitlines(keepends=True)
    # What the beginning is taken for differs; further on, every third end is enough.
    halves = [head + LISTED[:end] for head in ("", "---\n", "# of today\n") for end in range(12)]
    halves += [LISTED[:end] for end in range(12, len(LISTED), 3)]
    halves += ["".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))]
    accepted = 0
    for half in halves:
        try:
            grants = parse(half.encode())
        except TokenFileError:
            continue
        accepted += 1
        for grant in grants:
            assert grant.digest in whole, half
            assert grant.scope is not Scope.ADMIN or whole[grant.digest].scope is Scope.ADMIN, half
    assert accepted, "the test has tried nothing"


def test_binary_and_oversized_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="UTF-8"):
        parse(b"\xff\xfe\x00")
    large = tmp_path / "large"
    large.write_bytes(b"a" * (2**20 + 1))
    with pytest.raises(OSError, match="larger than"):
        WatchedFiles([large], lambda: 0.0).changed()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        WatchedFiles([tmp_path / "pipe"], lambda: 0.0).changed()


@pytest.fixture
def rotated(tmp_path: Path) -> Iterator[tuple[InProcessService, Path]]:
    """A service with one token of its own and a file of others."""
    file = tmp_path / "tokens.yaml"
    file.write_text("first\nsecond\n")
    service = InProcessService(tmp_path / "state", tokens=(admin("fixed"),), token_file=file)
    yield service, file
    service.close()


def _valid(service: InProcessService, *tokens: str) -> list[str]:
    """Those of the tokens that are let in at the moment."""
    found = []
    for token in tokens:
        with SelectorClient(service.address, "a", token=token) as client:
            try:
                client.list_runs()
                found.append(token)
            except Unauthenticated:
                pass
    return found


def test_tokens_come_and_go_with_the_file(
    rotated: tuple[InProcessService, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "selector.service")
    service, file = rotated
    everybody = ("fixed", "first", "second", TEAM, OPERATORS, "nobody")
    assert _valid(service, *everybody) == ["fixed", "first", "second"]
    file.write_text("second\n")
    assert _valid(service, *everybody) == ["fixed", "second"]
    replacement = file.with_name("new.yaml")
    replacement.write_text(LISTED)
    replacement.replace(file)
    assert _valid(service, *everybody) == ["fixed", TEAM, OPERATORS]
    assert "3 tokens (operators, team a, unnamed)" in caplog.text
    assert TEAM not in caplog.text and digest_of(OPERATORS).hex() not in caplog.text


@pytest.mark.parametrize("broken", ["", "tokens: [\n", f"tokens:\n  - {TEAM}: x\n", None])
def test_a_broken_file_changes_nothing_and_is_said_once(
    rotated: tuple[InProcessService, Path], caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    service, file = rotated
    assert _valid(service, "first", "second") == ["first", "second"]
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    for _ in range(3):
        assert _valid(service, "fixed", "first", "second", TEAM) == ["fixed", "first", "second"]
    said = [record for record in caplog.records if "NOT USABLE" in record.message]
    assert [record.levelno for record in said] == [logging.ERROR]
    assert str(file) in said[0].message and TEAM not in caplog.text
    service.server.reload()
    assert len([record for record in caplog.records if "NOT USABLE" in record.message]) == 2, "asked, it says so again"
    file.write_text("third\n")
    assert _valid(service, "fixed", "first", "third") == ["fixed", "third"]


def test_a_change_within_the_tick_of_the_clock_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same size, time and inode; what was taken away must not live on for that. Later, nobody looks inside."""
    file = tmp_path / "file"
    file.write_text("a")
    written_s = 1000.0
    times = [written_s + 1]
    same = (int(written_s * 1e9), int(written_s * 1e9), 1, 7, 7)
    monkeypatch.setattr(watched_files, "_signature", lambda path: same)
    watched = WatchedFiles([file], lambda: times[0])
    assert watched.changed() == (b"a",)
    assert watched.changed() is None
    file.write_text("b")
    assert watched.changed() == (b"b",)
    times[0] = written_s + 60
    assert watched.changed() is None
    file.unlink()
    assert watched.changed() is None
    with pytest.raises(FileNotFoundError):
        watched.changed(force=True)


def test_every_change_of_a_file_shows_in_what_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    watched = WatchedFiles([file], lambda: file.stat().st_ctime + 60)
    assert (watched.changed(), watched.changed(), watched.unchanged()) == ((b"a",), None, True)
    assert watched.changed(force=True) == (b"a",)
    other = tmp_path / "other"
    other.write_text("b")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert not watched.unchanged()
    assert watched.changed() == (b"b",)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        watched.changed()
    assert watched.changed() is None, "said once"


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(LISTED)
    settings = ServerSettings(tmp_path / "state", tokens=(admin("fixed"),), token_file=file)
    shown = [repr(settings), str(Server(settings).describe()), repr(admin("fixed")), repr(parse(LISTED.encode()))]
    for secret in ("fixed", TEAM, digest_of("fixed").hex(), repr(digest_of("fixed")), digest_of(TEAM).hex()):
        assert [text for text in shown if secret in text] == []
    assert "'token': 'set'" in shown[1]


def test_a_file_that_cannot_be_used_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens:\n  - {TEAM}\n")
    with pytest.raises(ValueError, match=r"tokens\.yaml: tokens\[0\]") as caught:
        InProcessService(tmp_path / "state", token_file=file)
    assert TEAM not in str(caught.value)
    file.write_text("right\n")
    service = InProcessService(tmp_path / "state", token_file=file)
    assert _valid(service, "right", "wrong") == ["right"]
    service.close()


@pytest.mark.slow
def test_a_real_process_reads_again_on_sighup_and_never_shows_a_token(tmp_path: Path) -> None:
    file, config = tmp_path / "tokens.yaml", tmp_path / "config.yaml"
    file.write_text(LISTED)
    config.write_text(yaml.safe_dump({"token-file": str(file), "insecure": True}))
    process = ServiceProcess(
        tmp_path / "state", f"--config={config}", "--log-level=debug", environment={"SELECTOR_TOKEN": "of-environment"}
    )
    with process.client("team-a-1", token=TEAM) as client:
        client.create_run({})
        file.write_text(LISTED.replace("team-a-*", "team-b-*"))
        process.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while sum("3 tokens" in line for line in process.stderr) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(PermissionError):
            client.get_run()
        file.write_text(f"tokens: [{TEAM}]")
        with pytest.raises(PermissionError):
            client.get_run()
    with process.client("a", token="guessed-by-nobody") as client, pytest.raises(Unauthenticated):
        client.list_runs()
    assert process.terminate() == 0
    logged = "".join(process.stderr)
    assert logged.count("3 tokens (operators, team a, unnamed)") == 2
    assert "TOKEN FILE NOT USABLE" in logged
    secrets = (TEAM, OPERATORS, "of-environment", "guessed-by-nobody", digest_of(TEAM).hex())
    assert [secret for secret in secrets if secret in logged] == []
