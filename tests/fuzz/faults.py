"""What a fuzz target found: faults, one of each kind, with the input that showed it first."""

from __future__ import annotations

import base64
import faulthandler
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Seconds that one input may take before it counts as a hang: the process then ends with every thread's traceback.
HANG_S = 60.0
_MOST_KINDS = 50
_LONGEST_INPUT = 20_000


class Fault(AssertionError):
    """The system under test did something that it must not do.

    Attributes:
        kind: short; faults of one kind are reported once.
    """

    def __init__(self, kind: str, description: str) -> None:
        super().__init__(f"{kind}: {description}")
        self.kind = kind


@dataclass
class FaultReport:
    """One kind of fault: how often it was seen, and the input that showed it first."""

    kind: str
    description: str
    example: str
    times: int = 1


@dataclass
class Findings:
    """Inputs tried on a target and the faults found, by kind.

    Attributes:
        target: its name.
        answered: how often inputs ended in what, such as ``OK`` or ``INVALID_FIELD``.
    """

    target: str
    inputs: int = 0
    faults: dict[str, FaultReport] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)

    def begin(self, scratch: Path | None = None, shown: bytes = b"") -> None:
        """An input is about to be tried; from now on it has ``HANG_S`` seconds.

        Args:
            scratch: where it is kept, in case that the process does not live to report it.
        """
        self.inputs += 1
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        if scratch is not None:
            scratch.write_bytes(shown)

    def ended(self, outcome: str) -> None:
        """An input ended as it may."""
        self.answered[outcome] = self.answered.get(outcome, 0) + 1

    def record(self, error: BaseException, example: bytes | str) -> None:
        """A fault, or an exception that nothing announces."""
        kind = error.kind if isinstance(error, Fault) else _place(error)
        known = self.faults.get(kind)
        if known is not None:
            known.times += 1
        elif len(self.faults) < _MOST_KINDS:
            text = base64.b64encode(example).decode() if isinstance(example, bytes) else example
            told = str(error) if isinstance(error, Fault) else "".join(traceback.format_exception(error))
            self.faults[kind] = FaultReport(kind, told[-6000:], text[:_LONGEST_INPUT])

    def done(self) -> None:
        """No input is being tried any more."""
        faulthandler.cancel_dump_traceback_later()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def _place(error: BaseException) -> str:
    """The exception's type and where it was raised, which tells one defect from another."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in f.filename]
    last = frames[-1] if frames else None
    where = f"{Path(last.filename).name}:{last.name}:{last.lineno}" if last else "?"
    return f"{type(error).__name__} at {where}"
