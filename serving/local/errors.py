"""What can go wrong with a local stack; each message is the one line that a person reads."""

from __future__ import annotations


class LocalError(Exception):
    """Base of this package's errors."""


class HomeUnusable(LocalError):
    """The folder for the stack's state cannot be made or written to, or its disk is full."""


class AlreadyRunning(LocalError):
    """Another stack works in this home."""


class NotRunning(LocalError):
    """No stack works in this home."""


class PortTaken(LocalError):
    """Somebody else listens on a port that was asked for."""


class ProgramMissing(LocalError):
    """A program of the stack is not installed."""


class PartFailed(LocalError):
    """A part did not become ready; carries the end of its log."""

    def __init__(self, message: str, *, part: str, log_tail: list[str]) -> None:
        super().__init__(message)
        self.part = part
        self.log_tail = log_tail


class NotAnswering(LocalError):
    """All parts run, but something that was promoted does not answer; the stack was left running."""


class Interrupted(LocalError):
    """Asked to stop before everything was ready."""


def revived(name: str, message: str, *, log_tail: list[str]) -> LocalError:
    """The error that another process told of: its class's name, its message, the end of a log where there is one."""
    if name == PartFailed.__name__:
        return PartFailed(message, part="", log_tail=log_tail)
    known = {each.__name__: each for each in LocalError.__subclasses__()}
    return known.get(name, LocalError)(message)
