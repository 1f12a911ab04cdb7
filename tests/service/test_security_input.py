"""What callers send never turns into headers too large, forged log lines, or content in the log."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest

from selector.cli.log_lines import LogLines
from selector.errors import ServiceError
from selector.service.status import message_of, trailing_metadata
from selector.v1 import error_details_pb2
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason
from tests.service.bad_input import Stubs, refusal_of
from tests.service.running import InProcessService


def test_long_values_do_not_break_the_answer(service: InProcessService) -> None:
    """gRPC peers take 8 KiB of headers by default; a larger answer would be an error of another kind."""
    stubs = Stubs(service.address)
    for name in ("x" * 50_000, "é" * 50_000, "\x01\n" * 10_000):
        request = pb.CreateRunRequest(run_id="a", config={"estimator": {"name": 2, "adapter": name}})
        refusal = refusal_of(partial(stubs.call, "CreateRun", request))
        assert refusal.code.name == Reason[refusal.reason].code
        error = ServiceError(Reason.UNKNOWN_ADAPTER, name, metadata={"adapter": name, "short": "as it is"})
        ((key, value),) = trailing_metadata(error)
        assert len(message_of(error)) + len(key) + len(value) * 4 / 3 < 8000
        told = error_details_pb2.StatusDetails.FromString(value).details[0].value
        metadata = error_details_pb2.ErrorInfoDetail.FromString(told).metadata
        assert metadata["adapter"].endswith("…") and name.startswith(metadata["adapter"][:-1])
        assert metadata["short"] == "as it is"
    stubs.close()


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "\x1b[2Ja", "a\x00b", "a\u2028b", "a\x85b", "ab\x7f"])
def test_no_value_begins_a_line_of_the_log(text: str) -> None:
    def line(message: str, *values: Any, error: Exception | None = None) -> str:
        info: Any = (type(error), error, error.__traceback__) if error else None
        record = logging.LogRecord("name", logging.INFO, "file", 1, message, values, info)
        return LogLines("%(levelname)s %(message)s").format(record)

    plain = line("got %s", text)
    assert len(plain.splitlines()) == 1 and plain.isprintable(), plain
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        traced = line("it failed", error=error)
    first, *others = traced.splitlines()
    assert first == "INFO it failed"
    assert others and all(other.startswith("  | ") for other in others)
    assert all(other.isprintable() for other in others), traced
    assert "RuntimeError" in traced
