"""``slipway``: the command line's entry, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from serving.cli import deploying, errors, output, predicting, publishing, registry, stack

app = typer.Typer(
    name="slipway",
    help="Serve PyTorch models: push, promote, roll back. Errors: docs/cli.md has the exit codes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (stack, publishing, registry, deploying, predicting):
    each.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        app(args=arguments, prog_name="slipway")
    except SystemExit as ended:
        # Typer ends so, whatever came of it: mistakes of usage are 2, Ctrl-C is 130.
        return ended.code if isinstance(ended.code, int) else errors.FAILED
    except Exception as error:
        return _explain(error)
    return 0


def _explain(error: Exception) -> int:
    if os.environ.get("SLIPWAY_DEBUG") == "1":
        raise error
    known = errors.known(error)
    if known is None:
        output.note(f"slipway: internal error: {type(error).__name__}: {error}; SLIPWAY_DEBUG=1 shows where")
        return errors.FAILED
    if known.details:
        output.note(known.details.rstrip())
    output.note(f"slipway: {known}")
    return known.exit_code


if __name__ == "__main__":
    sys.exit(main())
