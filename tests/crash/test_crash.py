"""A short round of the crash harness; ``make crash KILLS=200`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import Campaign
from tests.crash.kills import traceable

_SEED = 5


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_to_kills(tmp_path: Path) -> None:
    if not traceable():
        pytest.skip("NOT killed in system calls: strace is missing or may not trace here (apt-get install strace)")
    campaign = Campaign(tmp_path / "campaign", _SEED)
    campaign.run(12)
    figures = campaign.figures
    assert sum(figures.kills.values()) == 12
    # The round did something, and something was on its way when the server died.
    assert figures.counted["ReportOutcomes"] > 100
    assert figures.counted["in doubt, applied"] + figures.counted["in doubt, not applied"] > 0
    assert figures.counted["answers compared with an uninterrupted service"] > 100
