"""``python -m serving.local``: the supervisor in the background, as ``slipway up -d`` starts it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from serving import logs
from serving.local import errors, parts
from serving.local.home import Home
from serving.local.running import Message, Running, Tell, Wishes


def main() -> int:
    """Run a stack until SIGTERM; tell its progress through a pipe until it is up."""
    arguments = _parse()
    logs.configure(part="supervisor")
    tell = _teller(arguments.tell)
    wishes = Wishes(
        home=Home(arguments.home),
        ports=dict(arguments.port),
        answer_timeout_s=arguments.answer_timeout,
        options=parts.Options(with_store=not arguments.no_store),
    )
    try:
        Running(wishes, tell=tell).run()
    except errors.LocalError as error:
        tail = error.log_tail if isinstance(error, errors.PartFailed) else []
        tell(Message(kind="failed", text=str(error), error=type(error).__name__, log_tail=tail))
        return 1
    return 0


def _teller(descriptor: int) -> Tell:
    """Writes messages as lines until the first that ends the start, or until nobody listens any more."""
    pipe = [descriptor]

    def tell(message: Message) -> None:
        if not pipe:
            return
        try:
            os.write(pipe[0], message.model_dump_json().encode() + b"\n")
            is_last = message.kind in ("ready", "degraded", "failed")
        except BrokenPipeError:
            is_last = True
        if is_last:
            os.close(pipe.pop())

    return tell


def _parse() -> argparse.Namespace:
    def named_port(text: str) -> tuple[str, int]:
        name, _, number = text.partition("=")
        return name, int(number)

    parser = argparse.ArgumentParser(prog="python -m serving.local", description="A stack's supervisor.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--tell", type=int, required=True, help="file descriptor for messages")
    parser.add_argument("--port", type=named_port, action="append", default=[], metavar="NAME=PORT")
    parser.add_argument("--answer-timeout", type=float, required=True)
    parser.add_argument("--no-store", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
