"""``python -m tests.crash --kills 200``: kill the server that often, and check that nothing was lost."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from selector.cli.output_file import output_file
from tests.crash.campaign import Campaign
from tests.crash.kills import traceable
from tests.crash.service import Mismatch


def main() -> int:
    """Run the campaign; 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="of every choice; default: a new one, which is printed")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if arguments.seed is None else arguments.seed
    if not traceable():
        sys.stdout.write("strace is missing or may not trace: the server is killed at random times only\n")
    directory = Path(tempfile.mkdtemp(prefix="selector-crash-"))
    campaign = Campaign(directory, seed)
    sys.stdout.write(f"seed {seed}, {arguments.kills} kills, state in {directory}\n")
    sys.stdout.flush()
    failure = ""
    try:
        campaign.run(arguments.kills)
    except Mismatch as error:
        failure = f"FAILED in round {campaign.round} (seed {seed}): {campaign.kill}\n{error}"
    figures = campaign.figures
    result: dict[str, Any] = {
        "seed": seed,
        "kills": sum(figures.kills.values()),
        "kills_by_kind": dict(figures.kills.most_common()),
        "restarts_checked": figures.restarts,
        "operations_and_checks": dict(sorted(figures.counted.items())),
        "seconds": round(figures.seconds, 1),
        "failure": failure,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for title in ("kills_by_kind", "operations_and_checks"):
        for name, count in result[title].items():
            sys.stdout.write(f"{count:9,}  {name}\n")
        sys.stdout.write("\n")
    if failure:
        sys.stdout.write(
            f"{failure}\nThe state directory, its log and the journal of the clients are in {directory}.\n"
        )
        return 1
    shutil.rmtree(directory)
    sys.stdout.write(f"{result['kills']} kills survived in {figures.seconds:.0f} s: nothing lost, nothing twice\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
