"""``selector import-prior``: rows of a file become priors of the prompts they belong to, and it says which did not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clients import PromptRow, SelectorClient
from tests.cli.conftest import Invoke
from tests.service.running import InProcessService

IDS = ("a", "b", "c", "d")
TEXTS = ("What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?", "What is 3 + 3?")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path / "state")
    client = running.client("run")
    client.create_run()
    client.register_prompts(IDS, TEXTS)
    yield running
    running.close()


def _priors(client: SelectorClient) -> list[tuple[float, int] | None]:
    return [row.prior for row in client.export("prompts") if isinstance(row, PromptRow)]


def _file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_are_matched_by_id(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(tmp_path / "rates.csv", "id,text,n,first", "a,x,8,0.25", "b,y,8,", "z,What is 3 + 3?,8,0.5", "c,w,8,1")
    figures = tmp_path / "figures.json"
    result = invoke("import-prior", "run", "--data", data, "--target", service.address, "--json", figures)
    assert result.exit_code == 0
    assert _priors(service.client("run")) == [(0.25, 8), None, (1.0, 8), None]
    said = json.loads(figures.read_text())
    assert said == {
        "run": "run",
        "data": str(data),
        "step": None,
        "models": ["first"],
        "matched_by": "id",
        "prompts": 2,
        "unmatched": 1,
        "unmatched_rows": ["z"],
        "without_rate": 1,
        "notes": [],
    }
    assert "rows that match no prompt  1 (z)" in result.stdout
    assert "rows without a rate        1 (their prompts keep the prior they had)" in result.stdout


def test_rows_are_matched_by_text_but_for_white_space(
    invoke: Invoke, service: InProcessService, tmp_path: Path
) -> None:
    """No id is the run's. Two prompts ask the same, and so do two rows."""
    table = {
        "id": ["1", "2", "3", "4"],
        "question": [" What is\n 1 + 1? ", "What is 3 + 3?", "What is 9?", "What  is 3 + 3?"],
        "model": [0.5, 0.0, 0.5, 1.0],
        "model.n": [2, 4, 4, 12],
    }
    pq.write_table(pa.table(table), tmp_path / "rates.parquet")
    result = invoke("import-prior", "run", "--data", tmp_path / "rates.parquet", "--target", service.address)
    assert result.exit_code == 0
    assert "matched by                 text" in result.stdout
    assert "rows that match no prompt  1 (3)" in result.stdout
    assert _priors(service.client("run")) == [(0.5, 2), None, (0.75, 16), (0.75, 16)]


def test_ids_that_only_look_like_the_runs(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(tmp_path / "rates.csv", "id,text,n,model", "a,What is 2 + 2?,4,0.5")
    assert invoke("import-prior", "run", "--data", data, "--by", "text", "--target", service.address).exit_code == 0
    assert _priors(service.client("run")) == [None, (0.5, 4), None, None]


def test_models_are_chosen_or_put_together(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(
        tmp_path / "rates.jsonl",
        '{"id": "a", "m": 0.5, "m.n": 4, "o": 1.0, "o.n": 12, "p": 0.0, "p.n": 8}',
        '{"id": "b", "m": 0.5, "m.n": 4, "p": 0.25, "p.n": 4}',
        '{"id": "c", "p": 0.25, "p.n": 4}',
    )
    common = ("import-prior", "run", "--data", data, "--target", service.address)
    named = invoke(*common, "--model", "m", "--model", "o")
    assert (named.exit_code, "choose with --model" in named.stdout) == (0, False)
    assert _priors(service.client("run")) == [(0.875, 16), (0.5, 4), None, None]
    assert invoke(*common, "--model", "p").exit_code == 0
    assert _priors(service.client("run")) == [(0.0, 8), (0.25, 4), (0.25, 4), None]
    unnamed = invoke(*common)
    assert (unnamed.exit_code, "mean of 3 columns; choose with --model" in unnamed.stdout) == (0, True)
    assert _priors(service.client("run")) == [(14 / 24, 24), (0.375, 8), (0.25, 4), None]
    wrong = invoke(*common, "--model", "q")
    assert wrong.exit_code == 2
    assert "no column 'q'" in wrong.stderr


def test_a_model_that_is_not_asked_for_may_be_wrong(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(tmp_path / "rates.csv", "id,n,m,o", "a,8,0.25,0.5", "b,8,0.75,n/a")
    result = invoke("import-prior", "run", "--data", data, "--model", "m", "--target", service.address)
    assert result.exit_code == 0
    assert "'o' was left out: " in result.stdout
    assert _priors(service.client("run"))[:2] == [(0.25, 8), (0.75, 8)]


def test_an_import_that_belongs_to_a_step_is_rewound(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(tmp_path / "rates.csv", "id,m", "a,0.25", "b,0.75")
    result = invoke("import-prior", "run", "--data", data, "--step", 5, "--trials", 8, "--target", service.address)
    assert result.exit_code == 0
    client = service.client("run")
    assert _priors(client)[:2] == [(0.25, 8), (0.75, 8)]
    client.rewind(5)
    assert _priors(client) == [None] * 4


def test_nothing_that_matches_is_a_failure(invoke: Invoke, service: InProcessService, tmp_path: Path) -> None:
    data = _file(tmp_path / "rates.csv", "id,n,m", "x,8,0.25", f"{'y' * 300},8,0.75")
    result = invoke("import-prior", "run", "--data", data, "--target", service.address)
    assert result.exit_code == 1
    assert "rows that match no prompt  2" in result.stdout
    assert "nothing was imported" in result.stderr
    nobody = invoke("import-prior", "nobody", "--data", data, "--target", service.address)
    assert (nobody.exit_code, "nobody" in nobody.stderr) == (1, True)
    assert _priors(service.client("run")) == [None] * 4


@pytest.mark.parametrize(
    ("lines", "options", "code", "says"),
    [
        (["m", "0.5"], [], 2, "neither ids nor texts"),
        (["text,m", "x,0.5"], ["--by", "id"], 2, "no column of ids"),
        (["id,m", "x,0.5"], ["--by", "text"], 2, "no column of texts"),
        (["id,m", "x,50"], ["--model", "m"], 1, "divide percentages by 100"),
        (["id,m", "x,0.5"], ["--step", "-1"], 2, "--step"),
        (["id,m", "x,0.5"], ["--step", "9" * 23], 2, "--step"),
        (["id,m,o", "x,0.5,1", "y,1,1.2"], [], 1, "column 'o', line 3: expected a pass rate in [0, 1]; got '1.2'"),
        (["id,m,o", "x,0.5,1", "y,1,n/a"], ["--model", "o"], 1, "column 'o', line 3: expected a pass rate in [0, 1]"),
    ],
)
def test_files_that_are_of_no_use(
    invoke: Invoke, tmp_path: Path, lines: list[str], options: list[str], code: int, says: str
) -> None:
    """Found before any service is asked."""
    data = _file(tmp_path / "rates.csv", *lines)
    result = invoke("import-prior", "run", "--data", data, "--target", "127.0.0.1:9", *options)
    assert result.exit_code == code
    assert says in result.stderr


def test_a_state_directory_that_no_server_has_open(invoke: Invoke, tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state")
    service.client("run").create_run()
    service.client("run").register_prompts(["a"])
    service.close()
    data = _file(tmp_path / "rates.csv", "id,n,m", "a,8,0.25")
    assert invoke("import-prior", "run", "--data", data, "--state-dir", tmp_path / "state").exit_code == 0
    again = InProcessService(tmp_path / "state")
    assert _priors(again.client("run")) == [(0.25, 8)]
    again.close()
