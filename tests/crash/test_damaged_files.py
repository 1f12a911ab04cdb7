"""Files that are torn or damaged: the server starts with everything, or says which file is damaged. It never serves
anything else: what can be seen is compared with the model, as after a kill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.damage import Damage, cut, flipped, gone, in_use, served, zeroed
from tests.crash.faulty import Faulty

pytestmark = pytest.mark.slow

_DATABASE = r"state\.db"
_REPLAY = r"replay/data\.mdb"
_LOST = "has lost its newest"
_CASES: list[tuple[str, Damage, str]] = [
    # The newest transactions are in the log: whatever happens to it takes acknowledged ones away.
    *(
        ("state.db-wal", in_use(damage), f"refused: exit 1: .*{_DATABASE} {_LOST}")
        for damage in (flipped(0.3), flipped(0.97), cut(0.5), cut(0.99), gone)
    ),
    ("state.db-wal", flipped(0.0, 8), f"refused: exit 1: .*{_DATABASE} {_LOST}"),
    # Rebuilt from the log.
    ("state.db-shm", flipped(0.1), "intact"),
    ("state.db-shm", gone, "intact"),
    ("state.db", gone, f"refused: exit 1: .*{_DATABASE}"),
    ("data.mdb", cut(0.5), f"refused: exit 1: .*{_REPLAY} is damaged or cut off"),
    ("data.mdb", cut(0.9), f"refused: exit 1: .*{_REPLAY} is damaged or cut off"),
    ("data.mdb", gone, f"refused: exit 1: .*{_REPLAY} {_LOST}"),
    ("lock.mdb", flipped(0.2), "intact"),
    ("lock.mdb", gone, "intact"),
    *(("vectors.f32", damage, "owned up: .*EMBEDDINGS_DAMAGED.*/embeddings/") for damage in (cut(0.3), zeroed(0.0))),
    *(("keys.bin", damage, "owned up: .*EMBEDDINGS_DAMAGED.*/embeddings/") for damage in (cut(0.3), gone)),
    ("space.json", flipped(0.4), r"refused: exit 1: .*/space\.json"),
    ("space.json", zeroed(0.0), r"refused: exit 1: .*/space\.json"),
    ("space.json", gone, "intact"),
    ("watermark", flipped(0.1, 4), "intact"),
    ("watermark", gone, "intact"),
    ("lock", gone, "intact"),
]
# Wherever a bit flips: in nothing that counts, in something that has a checksum, or in what holds pages together.
_ANYTHING_BUT_WRONG = r"(intact|owned up: .*(state\.db|replay groups|payload of group)|refused: exit 1: .*{file})"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A server that was killed: most of its database is in the write-ahead log."""
    made = Faulty(tmp_path_factory.mktemp("killed") / "state")
    made.take(120)
    made.owner.check(made.service, thorough=True)
    made.close()
    yield made
    made.owner.close()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A server that was stopped: everything is in the files."""
    made = Faulty(tmp_path_factory.mktemp("stopped") / "state")
    made.take(120)
    made.owner.check(made.service, thorough=True)
    made.service.close()
    made.process.terminate()
    assert made.process.close() == 0
    yield made
    made.owner.close()


@pytest.mark.parametrize("number", range(len(_CASES)), ids=lambda number: f"{number}-{_CASES[number][0]}")
def test_damage_is_named_or_does_no_harm(killed: Faulty, tmp_path: Path, number: int) -> None:
    name, damage, expected = _CASES[number]
    found = served(killed.state_dir, killed.owner, tmp_path, name, damage)
    assert _matches(expected, found), found


@pytest.mark.parametrize("place", [i / 12 + 0.01 for i in range(12)])
@pytest.mark.parametrize("name, file", [("state.db", _DATABASE), ("data.mdb", _REPLAY)])
def test_a_flipped_bit_is_noticed_wherever_it_counts(
    stopped: Faulty, tmp_path: Path, name: str, file: str, place: float
) -> None:
    # Some bytes of a page are in use and some are not; a run of them meets both.
    found = served(stopped.state_dir, stopped.owner, tmp_path, name, flipped(place, 64))
    assert _matches(_ANYTHING_BUT_WRONG.replace("{file}", file), found), found


def _matches(expected: str, found: str) -> bool:
    return re.match(expected, found) is not None
