"""A file that cannot be written is found before the work that it is for."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from selector.cli.output_file import unwritable

COMMANDS = {
    "bench.adapter": ("FILE",),
    "bench.adapter_cost": (),
    "bench.encoders": ("FILE",),
    "bench.learning.__main__": ("run",),
    "bench.neighbours": ("FILE",),
    "bench.performance.__main__": (),
    "bench.performance.calls": (),
    "bench.performance.long_run": (),
    "bench.performance.predict": (),
    "bench.performance.registration": (),
    "bench.performance.replay.__main__": (),
    "bench.performance.select": (),
    "bench.prequential": (),
    "bench.rates": ("FILE",),
    "selector.cli.demo": (),
    "tests.crash.__main__": (),
    "tests.fuzz.__main__": (),
    "tests.load.soak": (),
    "tests.resume.__main__": (),
}


@pytest.mark.parametrize("module", COMMANDS)
def test_commands_refuse_it_at_once(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a command may leave behind if it does begin.
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "missing" / "figures.json"
    command = importlib.import_module(module)
    monkeypatch.setattr(sys, "argv", [module, *COMMANDS[module], "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        (command.demo if module == "selector.cli.demo" else command.main)()
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--json" in said
    assert f"cannot write {path}: No such file or directory" in said


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_bytes(b"kept")
    before = there.stat()
    assert unwritable(there) is None and unwritable(new) is None
    assert unwritable(Path("/dev/stdout")) is None
    assert (there.read_bytes(), there.stat().st_mtime_ns) == (b"kept", before.st_mtime_ns)
    assert not new.exists()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert unwritable(pipe) is None
    for impossible in (tmp_path, there / "below", tmp_path / "a\0b"):
        assert str(impossible) in str(unwritable(impossible))
