"""The installed command: imports the rest only where Ctrl-C is already answered for."""

from __future__ import annotations

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""


def main() -> int:
    """Run one command; returns its exit code."""
    try:
        # Half a second of imports: a person who changes her mind then is told nothing, rather than a traceback.
        from serving.cli import main as command

        return command.main()
    except KeyboardInterrupt:
        return INTERRUPTED
