"""Where the options of ``selector serve`` come from: flag, then environment, then file, then default."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from selector.cli.commands import cli
from selector.grants import admin
from selector.settings import ServerSettings
from tests.cli.conftest import Invoke

_SERVE: Any = cli.commands["serve"]
_OPTIONS: dict[str, click.Option] = {p.name: p for p in _SERVE.params if p.name}

# Option -> (flag, environment, file, default): four values that differ, as text and as the setting they become.
_SOURCES: dict[str, tuple[tuple[str, Any], tuple[str, Any], tuple[Any, Any], Any]] = {
    "listen": (("1.1.1.1:1", "1.1.1.1:1"), ("2.2.2.2:2", "2.2.2.2:2"), ("[::1]:3", "[::1]:3"), "127.0.0.1:50051"),
    "metrics-listen": (("", ""), ("2.2.2.2:2", "2.2.2.2:2"), ("3.3.3.3:3", "3.3.3.3:3"), "127.0.0.1:9090"),
    "state-dir": (("a", Path("a")), ("b", Path("b")), ("c", Path("c")), Path("selector-state")),
    "encoder": (("none", "none"), ("some/model", "some/model"), ("/a path", "/a path"), "default"),
    "workers": (("2", 2), ("3", 3), (4, 4), 8),
    "predictor-device": (("cuda", "cuda"), ("cuda:1", "cuda:1"), ("torch-cpu", "torch-cpu"), "cpu"),
    "grace-s": (("1.5", 1.5), ("2", 2.0), (2.5, 2.5), 30.0),
    "max-stream-bytes": (("10", 10), ("11", 11), (2**40, 2**40), 4 * 2**30),
    "adapters": (
        ("a=1.st", {"a": Path("1.st")}),
        ("b=2.st c=3.st", {"b": Path("2.st"), "c": Path("3.st")}),
        ({"d": "a path/4.st"}, {"d": Path("a path/4.st")}),
        {},
    ),
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """Settings that servers were started with, instead of starting them; no option is in the environment."""
    found: list[ServerSettings] = []

    async def serve(settings: ServerSettings) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("selector.cli.serve._serve", serve)
    for name in [name for name in os.environ if name.startswith("SELECTOR_")]:
        monkeypatch.delenv(name)
    return found


def _write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("option", _SOURCES)
def test_flag_then_environment_then_file_then_default(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path, option: str
) -> None:
    flag, environment, file, default = _SOURCES[option]
    name = option.replace("-", "_")
    config = _write(tmp_path / "selector.yaml", {option: file[0]})
    env = {str(_OPTIONS[name].envvar): environment[0]}
    flags = [_OPTIONS[name].opts[0], flag[0]]
    for arguments, variables in (
        (["--config", config, *flags], env),
        (["--config", config], env),
        (["--config", config], {}),
        ([], {}),
    ):
        result = invoke("serve", *arguments, env=variables)
        assert result.exit_code == 0, result.output
    assert [getattr(settings, name) for settings in started] == [flag[1], environment[1], file[1], default]


def test_the_file_may_come_from_the_environment_and_use_underscores(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path
) -> None:
    config = _write(tmp_path / "selector.yaml", {"max_runs": 7, "max-prompts": 9, "workers": None})
    assert invoke("serve", env={"SELECTOR_CONFIG": str(config)}).exit_code == 0
    assert (started[0].max_runs, started[0].max_prompts, started[0].workers) == (7, 9, 8)


def test_an_empty_file_changes_nothing(invoke: Invoke, started: list[ServerSettings], tmp_path: Path) -> None:
    assert invoke("serve", "--config", _write(tmp_path / "empty.yaml", "# nothing\n")).exit_code == 0
    assert started == [ServerSettings(Path("selector-state"))]


def test_defaults_are_those_of_the_settings(invoke: Invoke, started: list[ServerSettings]) -> None:
    assert invoke("serve").exit_code == 0
    assert started == [ServerSettings(Path("selector-state"))]


def test_every_setting_has_an_option() -> None:
    settings = {field.name for field in fields(ServerSettings)} - {"tokens"} | {"token", "token_file"}
    assert settings == set(_OPTIONS) - {"config", "log_level"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("max_rums: 3\n", "max_rums"),
        ("config: other.yaml\n", "'config'"),
        ("max-runs: 3\nmax_runs: 4\n", "max_runs"),
        ("- listen\n", "mapping"),
        ("just text\n", "mapping"),
        ("1: 2\n", "mapping"),
        ("listen: [\n", "bad.yaml"),
        ("workers: many\n", "--workers"),
        ("workers: 2.5\n", "--workers"),
        ("workers: 0\n", "--workers"),
        ("workers: true\n", "workers"),
        ("insecure: 1\n", "insecure"),
        ("insecure: 'true'\n", "insecure"),
        ("workers: [2]\n", "workers"),
        ("workers: {a: 2}\n", "workers"),
        ("workers: 2020-01-01\n", "workers"),
        ("state-dir: [a]\n", "state-dir"),
        ("encoder: false\n", "encoder"),
        ("grace-s: .nan\n", "--grace-s"),
        ("grace-s: -1\n", "--grace-s"),
        ("listen: 5\n", "--listen"),
        ("listen: here:70000\n", "--listen"),
        ("log-level: loud\n", "--log-level"),
        ("adapters: [nofile]\n", "--adapter"),
        ("adapters: {a: true}\n", "adapters"),
        ("max-message-bytes: 10\n", "--max-message-bytes"),
    ],
    ids=lambda text: text.strip().replace("\n", "+"),
)
def test_a_wrong_file_is_a_usage_error_that_names_what_is_wrong(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path, content: str, says: str
) -> None:
    result = invoke("serve", "--config", _write(tmp_path / "bad.yaml", content))
    assert result.exit_code == 2
    assert says in result.stderr
    assert not started


@pytest.mark.parametrize("kind", ["missing", "directory", "binary"])
def test_an_unreadable_file_is_a_usage_error_that_names_it(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "unreadable.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    result = invoke("serve", "--config", path)
    assert result.exit_code == 2
    assert "unreadable.yaml" in result.stderr
    assert not started


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", ""], "--listen"),
        (["--listen", "host:-1"], "--listen"),
        (["--metrics-listen", "host:port"], "--metrics-listen"),
        (["--workers", "0"], "--workers"),
        (["--predictor-device", "gpu"], "--predictor-device"),
        (["--predictor-device", "cuda:256"], "--predictor-device"),
        (["--predictor-device", "cuda:\N{ARABIC-INDIC DIGIT ONE}"], "--predictor-device"),
        (["--grace-s", "inf"], "--grace-s"),
        (["--grace-s", "nan"], "--grace-s"),
        (["--adapter", "=file"], "--adapter"),
        (["--adapter", "a=1", "--adapter", "a=2"], "'a' is given twice"),
        (["--state-dir", __file__], "--state-dir"),
        (["--token-file", "does-not-exist"], "--token-file"),
        (["--no-such-option"], "--no-such-option"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_flag_is_a_usage_error_that_names_it(
    invoke: Invoke, started: list[ServerSettings], arguments: list[str], says: str
) -> None:
    result = invoke("serve", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert not started


def test_a_wrong_variable_is_a_usage_error_that_names_it(invoke: Invoke, started: list[ServerSettings]) -> None:
    result = invoke("serve", env={"SELECTOR_WORKERS": "many"})
    assert (result.exit_code, started) == (2, [])
    assert "SELECTOR_WORKERS" in result.stderr or "--workers" in result.stderr


def test_tokens_come_from_the_option_and_the_file(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path
) -> None:
    tokens = _write(tmp_path / "tokens", "\n first \n\nsecond\n")
    assert invoke("serve", "--token", "third", "--token-file", tokens).exit_code == 0
    assert (started[0].tokens, started[0].token_file) == ((admin("third"),), tokens)


def test_a_token_file_without_a_token_is_a_usage_error(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path
) -> None:
    """Serving without authentication is not what was asked for."""
    result = invoke("serve", "--token-file", _write(tmp_path / "tokens", "\n \n"))
    assert (result.exit_code, started) == (2, [])
    assert "--token-file" in result.stderr


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_option_is_explained(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    for parameter in cli.commands[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{command} {parameter.opts[0]}"
            assert parameter.opts[0] in result.output
            if parameter.envvar:
                assert str(parameter.envvar) in result.output.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("command", ["serve", "health"])
def test_every_option_of_the_service_has_a_variable(command: str) -> None:
    """A container is configured by its environment."""
    named = {p.name: p.envvar for p in cli.commands[command].params if p.name}
    assert all(str(variable).startswith("SELECTOR_") for variable in named.values()), named
    assert len(set(named.values())) == len(named)


def test_a_flag_in_the_file_is_true_or_false(invoke: Invoke, started: list[ServerSettings], tmp_path: Path) -> None:
    for value in (True, False):
        config = _write(tmp_path / "selector.yaml", {"insecure": value})
        assert invoke("serve", "--config", config).exit_code == 0
    assert invoke("serve", "--config", config, "--insecure").exit_code == 0
    assert invoke("serve", env={"SELECTOR_INSECURE": "true"}).exit_code == 0
    assert [settings.insecure for settings in started] == [True, False, True, True]


@pytest.mark.parametrize("content", ["token: the-secret\n: bad\n - x", "token: [the-secret\n", "the-secret: 'x\n"])
def test_a_file_that_is_no_yaml_is_not_quoted(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path, content: str
) -> None:
    result = invoke("serve", "--config", _write(tmp_path / "bad.yaml", content))
    assert (result.exit_code, started) == (2, [])
    assert "not valid YAML at line" in result.stderr and "the-secret" not in result.output


@pytest.mark.parametrize("token", ["two words", "naïve", "a\nb"])
def test_a_token_that_no_call_could_carry_is_a_usage_error(
    invoke: Invoke, started: list[ServerSettings], token: str
) -> None:
    result = invoke("serve", "--token", token)
    assert (result.exit_code, started) == (2, [])
    assert "printable ASCII" in result.stderr and token not in result.stderr
