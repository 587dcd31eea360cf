"""``slipway``: the command line's entry, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import sys

import click
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
        return _run(arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        output.note("interrupted")
        return errors.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python must not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error)


def _run(arguments: list[str] | None) -> int:
    result = app(args=arguments, prog_name="slipway", standalone_mode=False)
    return result if isinstance(result, int) else 0


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
