"""Writes that fail, in the real process: clean errors, nothing half-applied, reading goes on, and no restart is needed.

A trainer goes on making calls while a system call fails, so that every kind of call meets the fault at one time or
another. Whatever is refused must have had no effect, and must be applied once when it is sent again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from selector.v1 import selector_service_pb2 as pb
from tests.crash.faults import failing, needs_strace
from tests.crash.faulty import Faulty
from tests.crash.operations import REWIND_WINDOW, Rewind, fresh_id
from tests.crash.service import Refused

pytestmark = pytest.mark.slow

_BEFORE, _DURING, _AFTER = 60, 30, 15

_FAULTS = [
    ("pwrite64", "ENOSPC", ["state.db-wal"], "1+"),
    ("pwrite64", "EIO", ["state.db-wal"], "3"),
    ("fdatasync", "EIO", ["state.db-wal"], "1+"),
    ("pwrite64", "ENOSPC", ["data.mdb"], "1+"),
    ("fdatasync", "EIO", ["data.mdb"], "1+"),
    # The write that makes a transaction of LMDB valid comes after those of its pages; LMDB gives up when it fails.
    ("pwrite64", "EIO", ["data.mdb"], "2+3"),
    ("pwrite64", "ENOSPC", ["vectors.f32"], "1+"),
    ("fdatasync", "EIO", ["keys.bin"], "1+"),
    # Neither the write nor the cleaning up after it.
    ("pwrite64,ftruncate", "EIO", ["vectors.f32", "keys.bin"], "1+"),
    ("openat", "EACCES", ["vectors.f32", "keys.bin"], "1+"),
    ("pwrite64", "ENOSPC", ["state.db-wal", "data.mdb", "vectors.f32"], "1+"),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    needs_strace()
    made = Faulty(tmp_path_factory.mktemp("faults") / "state")
    made.take(_BEFORE)
    yield made
    made.owner.close()
    made.close()


@pytest.mark.parametrize(
    "call, error, names, when", _FAULTS, ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_a_fault_changes_nothing(faulty: Faulty, call: str, error: str, names: list[str], when: str) -> None:
    root = faulty.state_dir
    files = [path for name in names for path in root.rglob(name)]
    assert files
    with failing(faulty.process.pid, call, error, files, when):
        refused = faulty.take_failing(_DURING)
        faulty.check_reading()
    assert faulty.refusals, "the fault was never met"
    # The same requests again, without a restart: applied once, as if for the first time.
    for operation in refused:
        answers = faulty.send(operation)
        flags = [answer.already_applied for answer in answers if hasattr(answer, "already_applied")]
        assert not flags or flags.count(False) == 1, operation.describe()
        faulty.owner.apply(operation, answers)
    faulty.take(_AFTER)
    faulty.owner.check(faulty.service, thorough=False)
    # Memory was what is on the disk.
    faulty.restart()
    faulty.owner.check(faulty.service, thorough=True)


def test_a_transaction_whose_flush_failed_is_not_found_after_a_crash(faulty: Faulty) -> None:
    """It is in the log, whole: without a flush it only may have been lost, and it was answered as not applied."""
    wal = [faulty.state_dir / "state.db-wal"]
    faulty.take(3)
    with failing(faulty.process.pid, "fdatasync", "EIO", wal):
        for _ in range(20):
            operation = faulty.trainer.next(faulty.owner.world, encoder=False)
            answers = faulty.send(operation)
            if isinstance(answers[0], Refused) and answers[0].reason == "STORAGE_FAILED":
                break
            faulty.owner.apply(operation, answers)
        else:
            pytest.fail("nothing was refused")
    faulty.restart()
    faulty.owner.check(faulty.service, thorough=True)


def test_a_rewind_is_done_once_it_is_answered_whatever_the_replay_store_says(faulty: Faulty) -> None:
    """No transaction spans the two stores: replay follows, at the latest when it is next used."""
    found = None
    while found is None:
        faulty.take(5)
        # One that changes what a buffer holds.
        found = next(
            (
                (model, step)
                for model in faulty.owner.world.values()
                for step in range(max(model.highest - REWIND_WINDOW + 1, 0), model.replay_step + 1)
                if len(model.fork("", step).replay.state().live) != len(model.replay.state().live)
            ),
            None,
        )
    model, step = found
    rewind = Rewind([pb.RewindRunRequest(run_id=model.run_id, step=step, request_id=fresh_id())])
    with failing(faulty.process.pid, "pwrite64", "EIO", list(faulty.state_dir.rglob("data.mdb"))):
        faulty.owner.apply(rewind, faulty.send(rewind))
        faulty.check_reading()
    faulty.check_reading()
    faulty.take(5)
    faulty.owner.check(faulty.service, thorough=True)
