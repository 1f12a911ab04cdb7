"""No field of any request is left without a bad-input case, and no case is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tests.service.bad_input import METHODS
from tests.service.test_bad_input_config import CASES as CONFIG_CASES
from tests.service.test_bad_input_replay import CASES as REPLAY_CASES
from tests.service.test_bad_input_selector import CASES as SELECTOR_CASES

_CASES = [*SELECTOR_CASES, *REPLAY_CASES, *CONFIG_CASES]


def _leaves(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and descriptor of every field below a message that holds no message itself."""
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from _leaves(field.message_type, (*path, field.name))
        else:
            yield (*path, field.name), field


def test_every_field_of_every_request_has_a_case() -> None:
    """Booleans cannot be wrong."""
    covered = {(case.rpc, case.path()) for case in _CASES}
    missing = [
        f"{rpc}.{'.'.join(path)}"
        for rpc, (method, _) in METHODS.items()
        for path, field in _leaves(method.input_type)
        if field.type != FieldDescriptor.TYPE_BOOL and (rpc, path) not in covered
    ]
    assert missing == []


def test_every_case_is_about_a_field_that_exists() -> None:
    known = {
        (rpc, path[:depth])
        for rpc, (method, _) in METHODS.items()
        for path, _ in _leaves(method.input_type)
        for depth in range(1, len(path) + 1)
    }
    assert [case.id for case in _CASES if (case.rpc, case.path()) not in known] == []


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(case.id for case in _CASES).items() if count > 1] == []
