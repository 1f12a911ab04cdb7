"""The ``selector`` command. Exit codes: 0 good, 1 failed, 2 usage."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; says what to install when only the light client is there."""
    try:
        # A trainer's environment may well have click.
        import click  # noqa: F401
        import grpc_health  # noqa: F401
    except ModuleNotFoundError:
        sys.stderr.write(
            "selector: the command needs the server's packages; install them with\n"
            "    pip install 'curriculum-selector[server]'\n"
        )
        sys.exit(1)
    from selector.cli.commands import cli

    cli(prog_name="selector")
