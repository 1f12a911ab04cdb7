"""What a verification found, check by check."""

from __future__ import annotations

from dataclasses import dataclass, field

# A damaged file can be wrong in every row; the first ones say where to look.
_LISTED = 100


@dataclass
class Check:
    """One kind of check.

    Attributes:
        name: what was looked at.
        examined: how many of them.
        problems: what is wrong, the first hundred; each names its run and file or row.
        problem_count: all of them.
        notes: what is as it may be, but worth knowing.
    """

    name: str
    examined: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    notes: list[str] = field(default_factory=list)

    def problem(self, description: str) -> None:
        """Add something that is wrong."""
        self.problem_count += 1
        if len(self.problems) < _LISTED:
            self.problems.append(description)

    def note(self, description: str) -> None:
        """Add something worth knowing."""
        self.notes.append(description)


@dataclass
class Report:
    """A verification.

    Attributes:
        directory: what was verified.
        kind: ``backup`` or ``state directory``.
        checks: in the order they were made.
    """

    directory: str
    kind: str
    checks: list[Check] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not any(check.problem_count for check in self.checks)

    def check(self, name: str) -> Check:
        """Begin a check."""
        self.checks.append(Check(name))
        return self.checks[-1]
