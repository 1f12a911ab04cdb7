"""Disks that are full or read-only, in the real process: errors are clean, and space can be made by deleting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from selector.v1 import selector_service_pb2 as pb
from tests.crash.faults import disk, fill, remount
from tests.crash.faulty import OPTIONS, Faulty
from tests.crash.observation import ask
from tests.crash.operations import Delete, Rewind, fresh_id
from tests.crash.service import Process

pytestmark = pytest.mark.slow

_RESERVE = 2 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", "24m") as path:
        yield path


@pytest.fixture
def faulty(small: Path) -> Iterator[Faulty]:
    made = Faulty(small / "state", f"--reserve-bytes={_RESERVE}", log=small.with_name("log"))
    made.take(80)
    yield made
    made.owner.close()
    made.close()


def _fill(faulty: Faulty, path: Path) -> None:
    """Fill the disk, and go on until every store has used up the room in its files."""
    fill(path)
    for _ in range(20):
        faulty.take_failing(20, deleting=False)
        if faulty.refusals >= 10:
            return
        fill(path)
    pytest.fail("calls still succeed on a full disk")


def test_a_full_disk_changes_nothing_and_the_server_recovers_when_it_grows(faulty: Faulty, small: Path) -> None:
    _fill(faulty, small)
    refused = faulty.take_failing(10)
    faulty.check_reading()
    remount(small, "size=48m")
    for operation in refused:
        faulty.owner.apply(operation, faulty.send(operation))
    faulty.take(20)
    faulty.owner.check(faulty.service, thorough=True)
    faulty.restart()
    faulty.owner.check(faulty.service, thorough=True)


def test_on_a_full_disk_runs_can_be_rewound_and_deleted(faulty: Faulty, small: Path) -> None:
    """With the space that is kept back for it, also after a restart."""
    _fill(faulty, small)
    faulty.restart()
    faulty.check_reading()
    rewound, deleted = sorted(faulty.owner.world)
    step = max(faulty.owner.world[rewound].last_step - 1, 0)
    for operation in (
        Rewind([pb.RewindRunRequest(run_id=rewound, step=step, request_id=fresh_id())]),
        Delete([pb.DeleteRunRequest(run_id=deleted, request_id=fresh_id())]),
    ):
        faulty.owner.apply(operation, faulty.send(operation))
        faulty.check_reading()
    faulty.restart()
    faulty.check_reading()
    assert {run.run_id for run in ask(faulty.service, "ListRuns", pb.ListRunsRequest()).runs} == {rewound}
    # What the deleted run took is room for others, on the same disk.
    (small / "filler").unlink()
    faulty.take(20)
    faulty.owner.check(faulty.service, thorough=True)


def test_a_disk_that_turns_read_only(faulty: Faulty, small: Path) -> None:
    """It cannot while files are open for writing, so the server is restarted in between."""
    faulty.close()
    remount(small, "ro")
    process = Process(faulty.state_dir, OPTIONS, log=small.with_name("log"))
    assert process.address() == ""
    assert process.close() == 1
    assert "cannot start: cannot use state directory" in process.last_words()
    assert "Read-only file system" in process.last_words()
    remount(small, "rw")
    faulty.start()
    faulty.owner.check(faulty.service, thorough=True)


def test_a_new_state_directory_on_a_full_disk(small: Path) -> None:
    fill(small)
    process = Process(small / "state", OPTIONS, log=small.with_name("log"))
    assert process.address() == ""
    assert process.close() == 1
    assert "cannot start: " in process.last_words() and str(small / "state") in process.last_words()
    (small / "filler").unlink()
    made = Faulty(small / "state", log=small.with_name("log"))
    made.take(10)
    made.owner.close()
    made.close()
