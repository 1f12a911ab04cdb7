"""Settings of an adapter: what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_adapters.checks import AdapterError, accepts, expect, supported_version, unique_ids
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.prompt_pool import PromptPool, content_ids
from trainer_adapters.rows import padded, unpadded

GIVEN: dict[str, Any] = {"target": "127.0.0.1:50051", "run_id": "run"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run_id": "run"}, "curriculum.target: is missing"),
        ({"target": "x:1", "run_id": ""}, "curriculum.run_id: is missing"),
        ({**GIVEN, "taget": "x:1"}, "curriculum.taget: no such setting (did you mean 'target'?)"),
        ({**GIVEN, "fresh_fraction": 0.5}, "curriculum.fresh_fraction: no such setting (it belongs into run.replay"),
        ({**GIVEN, "on_failure": "ignore"}, "curriculum.on_failure: expected 'open' or 'closed', got 'ignore'"),
        ({**GIVEN, "run": "group_size=8"}, "curriculum.run: expected a mapping of RunConfig's fields"),
        ({**GIVEN, "replay": "false"}, "curriculum.replay: expected true or false, got 'false'"),
        ({**GIVEN, "timeout_s": "60"}, "curriculum.timeout_s: expected seconds, got '60'"),
        ({**GIVEN, "probe_s": None}, "curriculum.probe_s: expected seconds, got None"),
        ({**GIVEN, "backlog_bytes": True}, "curriculum.backlog_bytes: expected bytes, got True"),
        ({**GIVEN, "backlog_bytes": -1}, "curriculum.backlog_bytes: expected bytes >= 0, got -1"),
        ({**GIVEN, "token_file": 3}, "curriculum.token_file: expected a path, got 3"),
        ({**GIVEN, "outcome": 5}, "curriculum.outcome: expected a name or a list of names, got 5"),
        ({**GIVEN, "outcome": ["a", 5]}, "curriculum.outcome: expected a name or a list of names, got ['a', 5]"),
        ({**GIVEN, "timeout_s": 0}, "curriculum.timeout_s: expected seconds >= 1, got 0"),
        ({**GIVEN, "probe_s": 2.0}, "curriculum.probe_s: expected seconds >= 3, got 2.0"),
    ],
)
def test_settings_from_a_file(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=f"^{re.escape(message)}"):
        CurriculumConfig.from_mapping(settings)


def test_the_token_is_read_from_its_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR_TOKEN", "not a token")
    with pytest.raises(ValueError, match="token: expected printable"):
        CurriculumConfig.from_mapping(GIVEN).client()
    (tmp_path / "token").write_text("secret\n")
    CurriculumConfig.from_mapping({**GIVEN, "token_file": str(tmp_path / "token")}).client().close()
    with pytest.raises(AdapterError, match=r"curriculum.token_file: .*absent. cannot be read"):
        CurriculumConfig.from_mapping({**GIVEN, "token_file": str(tmp_path / "absent")}).client()


def test_the_run_says_what_the_trainer_does() -> None:
    config = CurriculumConfig(**GIVEN, run={"score": "LEARNABLE", "seed": 4, "sampling": {"temperature": 1.0}})
    run = config.run_config(8, 7, {"temperature": 1.0, "top_p": 1.0})
    assert run == {
        "score": "LEARNABLE",
        "seed": 4,
        "group_size": 8,
        "sampling": {"temperature": 1.0, "top_p": 1.0},
    }
    with pytest.raises(AdapterError, match=r"curriculum.run.sampling.temperature: the run says 1.0, the trainer 0.6"):
        config.run_config(8, 7, {"temperature": 0.6})
    with pytest.raises(AdapterError, match=r"curriculum.run.sampling: expected a mapping"):
        CurriculumConfig(**GIVEN, run={"sampling": 1.0}).run_config(8, 7, {})
    with pytest.raises(AdapterError, match="at least 2 rollouts per prompt, got 1"):
        config.run_config(1, 7, {})


@pytest.mark.parametrize(
    ("installed", "good"),
    [("0.9.1", True), ("0.9", True), ("0.9.9.dev1", True), ("0.8.9", False), ("0.10.0", False), ("1.0", False)],
)
def test_versions(installed: str, good: bool) -> None:
    if good:
        supported_version("verl", "0.9.0", "0.10", installed=installed)
    else:
        with pytest.raises(AdapterError, match=f"verl: expected verl >= 0.9.0, < 0.10, got {installed}"):
            supported_version("verl", "0.9.0", "0.10", installed=installed)


def test_a_trainer_that_is_not_installed_and_one_that_is_no_release() -> None:
    with pytest.raises(AdapterError, match="no-such-trainer: expected no-such-trainer >= 1, but it is not installed"):
        supported_version("no-such-trainer", "1")
    with pytest.raises(AdapterError, match="version: expected a release"):
        supported_version("verl", "1", installed="main")


def test_hooks_and_options() -> None:
    def hook(self: object, inputs: object) -> None: ...

    accepts(hook, "hook", ["inputs"])
    with pytest.raises(AdapterError, match=r"hook: expected the parameters \['batch'\], got \['inputs'\]"):
        accepts(hook, "hook", ["batch"])
    expect("loss", "grpo", {"grpo", "dapo"}, "")
    with pytest.raises(AdapterError, match="loss: expected 'dapo' or 'grpo', got 'gspo': it ignores the weight"):
        expect("loss", "gspo", {"grpo", "dapo"}, "it ignores the weight")


def test_ids_that_are_not_unique_are_shown() -> None:
    with pytest.raises(AdapterError, match=r"extra_info.index: .* 4 prompts, got 2: '0' 3 times$"):
        unique_ids(["0", "0", "1", "0"], "extra_info.index")
    with pytest.raises(AdapterError, match="prompts: expected at least one, got none"):
        PromptPool((), ())


def test_a_prompt_keeps_its_id_wherever_it_stands() -> None:
    texts = ["a", "b", "a", "a", "c"]
    ids = content_ids(texts)
    assert len(set(ids)) == 5
    assert dict(zip(texts, ids, strict=True))["b"] == content_ids(["b"])[0]
    assert sorted(content_ids(texts[::-1])) == sorted(ids)
    assert content_ids(["\ud800"]) != content_ids(["\ud801"])


@given(st.lists(st.lists(st.integers(-5, 5), max_size=6), min_size=1, max_size=5), st.integers(0, 8), st.booleans())
def test_padding_is_undone(rows: list[list[int]], width: int, left: bool) -> None:
    arrays = [np.array(row, dtype=np.int32) for row in rows]
    table = padded(arrays, 9, width, left)
    assert table.dtype == np.int32 and table.shape[1] >= width
    mask = padded([np.ones_like(row) for row in arrays], 0, width, left)
    for row, back in zip(arrays, unpadded(table, mask), strict=True):
        np.testing.assert_array_equal(row, back)
    assert (table[mask == 0] == 9).all()


def test_a_mask_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"mask: expected shape \(2, 3\), got \(2, 2\)"):
        unpadded(np.zeros((2, 3)), np.zeros((2, 2)))
