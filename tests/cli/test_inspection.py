"""``selector runs``, ``show``, ``explain`` and ``export``: what they print and write is what the service answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clients import SelectorClient
from selector.cli.table import facts, size, table
from tests.cli.conftest import PROMPTS, RUN, STEPS, Invoke
from tests.service.running import InProcessService


@pytest.fixture(scope="module")
def client(target: str) -> Iterator[SelectorClient]:
    with SelectorClient(target, RUN) as made:
        yield made


def _cells(text: str) -> list[list[str]]:
    """Rows of a printed table, header first; no cell holds two spaces."""
    lines = [line for line in text.splitlines() if line and not line.startswith("--")]
    return [[cell for cell in line.split("  ") if cell.strip()] for line in lines]


def _facts(text: str) -> dict[str, str]:
    """Name -> value of printed facts."""
    pairs = (line.strip().partition("  ") for line in text.splitlines() if line.strip())
    return {name: value.strip() for name, _, value in pairs}


def test_runs_lists_every_run(invoke: Invoke, target: str, client: SelectorClient) -> None:
    result = invoke("runs", "--target", target)
    header, *rows = _cells(result.stdout)
    assert header[0] == "run"
    assert [row[0] for row in rows] == ["branch", "empty", RUN, "paper"]
    run = client.get_run()
    shown = dict(zip(header, rows[2], strict=True))
    assert shown["state"].strip() == "READY"
    assert int(shown["prompts"]) == run.pool.active == len(PROMPTS) - 1
    assert int(shown["last step"]) == run.last_step == STEPS - 1
    assert int(shown["outcome groups"]) == run.outcome_groups
    assert int(shown["replay groups"]) == run.replay_groups
    assert dict(zip(header, rows[1], strict=True))["last step"].strip() == "-"


def test_columns_are_aligned(invoke: Invoke, target: str) -> None:
    lines = invoke("runs", "--target", target).stdout.splitlines()
    rule = lines[1]
    gaps = [i for i, character in enumerate(rule) if character == " "]
    assert gaps
    assert all(line.ljust(len(rule))[i] == " " for line in lines for i in gaps)


def test_show_prints_configuration_pool_and_quality(invoke: Invoke, target: str, client: SelectorClient) -> None:
    result = invoke("show", RUN, "--target", target)
    assert result.exit_code == 0
    shown = _facts(result.stdout)
    quality = client.quality()
    assert shown["run"] == RUN
    assert shown["prompts"] == "15 active, 1 retired, 0 ineligible"
    assert shown["window (groups)"] == str(quality.window_groups)
    assert float(shown["mean absolute error"]) == pytest.approx(quality.mean_absolute_error, abs=5e-4)
    assert shown["largest importance weight of replay"] == "2.500"
    assert (shown["score"], shown["reference.mode"], shown["on_nan"]) == ("LEARNABLE", "IN_BATCH", "REJECT")
    assert (shown["selection_temperature"], shown["replay.max_age_steps"]) == ("0.001", "8")
    assert shown["outcome_range"] == "0, 1"
    assert "TARGETED" in result.stdout


def test_show_of_a_run_without_outcomes(invoke: Invoke, target: str) -> None:
    result = invoke("show", "empty", "--target", target)
    assert result.exit_code == 0
    assert _facts(result.stdout)["last step"] == "-"
    assert "no outcomes have been reported yet" in result.stdout


def test_show_counts_twins(invoke: Invoke, tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state")
    try:
        client = service.client("twins")
        client.create_run()
        vectors = np.random.default_rng(0).normal(size=(3, 32))
        client.register_prompts(["a0", "a1", "a2"], [f"What do {i} apples cost?" for i in range(3)], vectors)
        assert _facts(invoke("show", "twins", "--target", service.address).stdout)["twins"] == "-"
        for count, said in ((1, "1 prompt is a twin of an earlier one"), (2, "2 prompts are twins of earlier ones")):
            i = count - 1
            client.register_prompts([f"b{i}"], [f"What do {i} apples cost?"], vectors[i : i + 1])
            assert _facts(invoke("show", "twins", "--target", service.address).stdout)["twins"] == said
    finally:
        service.close()


def test_show_of_a_fork_names_its_origin(invoke: Invoke, target: str) -> None:
    assert _facts(invoke("show", "branch", "--target", target).stdout)["forked from"] == f"{RUN} at step 2"


def test_explain_prints_history_and_prediction(invoke: Invoke, target: str, client: SelectorClient) -> None:
    row = next(iter(client.export("outcomes")))
    found = client.explain(row.prompt_id)
    result = invoke("explain", RUN, row.prompt_id, "--target", target)
    assert result.exit_code == 0
    shown = _facts(result.stdout)
    assert shown["prompt"] == row.prompt_id
    assert shown["text"] == found.text
    assert shown["predicted difficulty"] == f"{found.predicted_difficulty:.3f} ± {found.standard_error:.3f}"
    assert found.not_selected_because in result.stdout
    outcomes = _cells(result.stdout.partition("\noutcomes\n")[2])
    assert len(outcomes) == 1 + len(found.outcomes)
    assert float(outcomes[1][3]) == pytest.approx(found.outcomes[0].difficulty, abs=5e-4)


def test_explain_prints_the_references_of_attention(invoke: Invoke, target: str) -> None:
    with SelectorClient(target, "paper") as client:
        found = next(e for e in map(client.explain, PROMPTS) if e.references)
    result = invoke("explain", "paper", found.prompt_id, "--target", target)
    _, *rows = _cells(result.stdout.partition("strongest references\n")[2].partition("\n\n")[0])
    assert [row[0].strip() for row in rows] == [r.prompt_id for r in found.references]


def test_explain_of_a_retired_prompt(invoke: Invoke, target: str) -> None:
    shown = _facts(invoke("explain", RUN, PROMPTS[-1], "--target", target).stdout)
    assert (shown["status"], shown["not selected because"]) == ("RETIRED", "it is retired")


def test_json_holds_what_the_client_returns(
    invoke: Invoke, target: str, client: SelectorClient, tmp_path: Path
) -> None:
    """Besides the table, which stays as it is."""
    path = tmp_path / "figures.json"

    def written(*arguments: str) -> Any:
        with_json = invoke(*arguments, "--target", target, "--json", path)
        assert with_json.exit_code == 0
        assert with_json.stdout == invoke(*arguments, "--target", target).stdout
        return json.loads(path.read_text(encoding="utf-8"))

    runs = written("runs")
    assert [run["run_id"] for run in runs] == [run.run_id for run in client.list_runs()]
    assert runs[2]["pool"]["active"] == 15
    shown = written("show", RUN)
    assert shown["quality"]["window_groups"] == client.quality().window_groups
    assert shown["run"]["config"]["seed"] == "3"
    explained = written("explain", RUN, PROMPTS[0])
    assert explained["predicted_difficulty"] == client.explain(PROMPTS[0]).predicted_difficulty


def test_json_that_cannot_be_written_is_refused_before_the_call(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("runs", "--target", "127.0.0.1:1", "--json", tmp_path / "missing" / "figures.json")
    assert result.exit_code == 2
    assert "--json" in result.stderr.splitlines()[-1]
    assert "figures.json: No such file or directory" in result.stderr


@pytest.mark.parametrize("source", ["target", "state-dir"])
def test_export_writes_what_the_client_returns(
    invoke: Invoke, target: str, state_dir: Path, client: SelectorClient, tmp_path: Path, source: str
) -> None:
    where = ("--target", target) if source == "target" else ("--state-dir", state_dir)
    result = invoke("export", RUN, "--output", tmp_path / "out", *where)
    assert result.exit_code == 0, result.stderr
    outcomes = pq.read_table(tmp_path / "out" / "outcomes.parquet").to_pylist()
    expected = [
        {"prompt_id": row.prompt_id, **vars(row.record), "outcomes": row.record.outcomes.tolist()}
        for row in client.export("outcomes")
    ]
    assert outcomes == expected
    assert len(outcomes) == client.get_run().outcome_groups > 0
    selections = pq.read_table(tmp_path / "out" / "selections.parquet").to_pylist()
    assert selections == [{"prompt_id": row.prompt_id, **vars(row.record)} for row in client.export("selections")]
    assert len(selections) == STEPS * 4
    predictions = pq.read_table(tmp_path / "out" / "predictions.parquet").to_pydict()
    found = client.predict_difficulty()
    assert predictions["prompt_id"] == list(found.prompt_ids) == list(PROMPTS)
    assert predictions["basis"] == list(found.bases)
    for name, values in (
        ("predicted_difficulty", found.predicted_difficulties),
        ("standard_error", found.standard_errors),
        ("own_weight", found.own_weights),
    ):
        np.testing.assert_array_equal(predictions[name], values)
    prompts = pq.read_table(tmp_path / "out" / "prompts.parquet").to_pylist()
    assert [row["prompt_id"] for row in prompts] == list(PROMPTS)
    for row, known in zip(prompts, client.export("prompts"), strict=True):
        assert known.embedding is not None
        assert row == {
            "prompt_id": known.prompt_id,
            "text": known.text,
            "domain": known.domain,
            "token_count": known.token_count,
            "prior_rate": None,
            "prior_trials": None,
            "embedding": known.embedding.tolist(),
            "status": known.status,
        }
    assert f"{len(outcomes)} outcome groups, {len(selections)} selected prompts, 16 predictions" in result.stdout


def test_export_of_an_empty_run_has_all_columns(invoke: Invoke, target: str, tmp_path: Path) -> None:
    assert invoke("export", "empty", "--output", tmp_path, "--target", target).exit_code == 0
    for name in ("outcomes", "selections", "predictions"):
        read = pq.read_table(tmp_path / f"{name}.parquet")
        assert read.num_rows == 0
        assert "prompt_id" in read.column_names


def test_export_to_where_nothing_can_be_written_is_one_line(invoke: Invoke, target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = invoke("export", RUN, "--output", tmp_path / "file" / "below", "--target", target)
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("runs",), ("show", RUN), ("explain", RUN, PROMPTS[0])], ids=lambda c: c[0])
def test_a_state_directory_shows_the_same_as_its_service(
    invoke: Invoke, target: str, state_dir: Path, command: tuple[str, ...]
) -> None:
    looked = invoke(*command, "--state-dir", state_dir)
    assert looked.exit_code == 0, looked.stderr
    assert looked.stdout == invoke(*command, "--target", target).stdout


def test_a_state_directory_wins_over_a_target_of_the_environment(invoke: Invoke, state_dir: Path) -> None:
    result = invoke("runs", "--state-dir", state_dir, env={"SELECTOR_TARGET": "127.0.0.1:1"})
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "nobody"), "no run 'nobody'"),
        (("explain", "nobody", "p"), "no run 'nobody'"),
        (("explain", RUN, "nobody"), "no prompt 'nobody'"),
        (("show", "a b"), "run_id"),
        (("export", "nobody"), "no run 'nobody'"),
    ],
)
@pytest.mark.parametrize("source", ["target", "state-dir"])
def test_what_is_not_there_is_one_line(
    invoke: Invoke,
    target: str,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
    source: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, *(("--target", target) if source == "target" else ("--state-dir", state_dir)))
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


def test_a_target_that_nobody_serves_is_one_line(invoke: Invoke) -> None:
    result = invoke("runs", "--target", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "UNAVAILABLE" in result.stderr and "127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_directory_that_is_no_state_directory_is_one_line(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("runs", "--state-dir", tmp_path)
    assert result.exit_code == 1
    assert "state.db" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("explain", RUN),
        ("runs", "stray"),
        ("runs", "--no-such-option"),
        ("runs", "--state-dir", "does-not-exist"),
        ("runs", "--state-dir", ".", "--target", "127.0.0.1:1"),
        ("no-such-command",),
    ],
    ids=" ".join,
)
def test_usage_errors(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage: selector" in result.stderr


def test_delete_asks_and_then_the_run_is_gone(invoke: Invoke, tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state")
    try:
        service.client("old").create_run({"group_size": 4})
        kept = invoke("delete", "old", "--target", service.address, input="n\n")
        assert kept.exit_code == 1 and "Delete run old with 0 outcome groups and 0 replay groups?" in kept.output
        assert invoke("delete", "old", "--yes", "--target", service.address).stdout == "deleted run old\n"
        gone = invoke("delete", "old", "--yes", "--target", service.address)
        assert gone.exit_code == 1 and "RUN_NOT_FOUND" in gone.stderr
        # Its id is free, also for another config.
        service.client("old").create_run({"group_size": 8})
    finally:
        service.close()


def test_tables_align_numbers_to_the_right() -> None:
    printed = table(("name", "count", "share", "known"), [("a", 5, 0.25, True), ("longer", 1234, None, False)])
    assert printed.splitlines() == [
        "name    count  share  known",
        "------  -----  -----  -----",
        "a           5  0.250    yes",
        "longer   1234      -     no",
    ]


def test_facts_align_values() -> None:
    assert facts([("a", 1), ("longer", None)]) == "a       1\nlonger  -"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text
