"""Pushes and samples of rollout groups through the service and through other stores.

    python -m bench.performance.replay --json replay.json

A step is 256 groups of 64 KiB. Every other store runs in an environment of its own, which is made the first time
(scripts/environment.py). Those of Reverb exist for Python 3.9 to 3.11 only; Redis needs redis-server on the path.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.performance.figures import at_least, options, parsed, show
from bench.performance.replay import content
from bench.performance.replay.beside import PEERS, beside
from bench.performance.replay.growth import callers, lengths
from bench.performance.replay.serving import Settings

_PARTS = ("beside", "lengths", "callers")


def main() -> int:
    """The command."""
    parser = options("replay", __doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default: %(default)s")
    parser.add_argument("--parts", default=",".join(_PARTS), help="comma-separated; default: %(default)s")
    parser.add_argument("--rounds", type=at_least(1), default=15)
    parser.add_argument("--warm-up", type=at_least(0), default=3, help="rounds before, which are not counted")
    parser.add_argument("--groups", type=at_least(1), default=256, help="of a push and of a sample")
    parser.add_argument(
        "--tokens", type=at_least(1), default=content.RESPONSE_TOKENS, help="response tokens of a group"
    )
    parser.add_argument("--stored", type=at_least(1), default=4096, help="groups in each store, a multiple of --groups")
    parser.add_argument("--folder", type=Path, help="where stores put their files; default: a temporary one")
    arguments = parsed(parser, groups=16, stored=64, rounds=2, warm_up=1)
    names = [name for name in arguments.peers.split(",") if name]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        parser.error(f"--peers: expected some of {', '.join(PEERS)}; got {', '.join(unknown)}")
    parts = arguments.parts.split(",")
    if not set(parts) <= set(_PARTS):
        parser.error(f"--parts: expected some of {', '.join(_PARTS)}; got {arguments.parts}")
    if arguments.stored % arguments.groups:
        parser.error(f"--stored: expected a multiple of --groups {arguments.groups}; got {arguments.stored}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="replay-", dir=arguments.folder) as folder:
        settings = Settings(arguments.groups, arguments.tokens, arguments.stored, Path(folder))
        if "beside" in parts:
            chosen = {name: PEERS[name] for name in names}
            figures += beside(chosen, settings, arguments.rounds, arguments.warm_up)
        if "lengths" in parts:
            tokens = (1024, 2048) if arguments.quick else (1024, 4096, 16384, 32768)
            figures += lengths(settings, tokens, arguments.rounds)
        if "callers" in parts:
            figures += callers(settings, (1, 2) if arguments.quick else (1, 2, 4, 8, 16), arguments.rounds)
    show(figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
