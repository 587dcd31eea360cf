"""What can go wrong with a server process."""

from __future__ import annotations


class ServerError(Exception):
    """Base of everything that this package raises."""


class NotInstalled(ServerError):
    """The worker's interpreter lacks something that TorchServe needs, or no JVM was found."""


class InvalidSetting(ServerError):
    """A value that TorchServe would misread or silently ignore."""


class NoFreePort(ServerError):
    """No port of the configured range can be bound."""


class LaunchFailed(ServerError):
    """The operating system refused to start the process, or its folder could not be written."""


class Unreachable(ServerError):
    """The process's own API gave no answer in time."""


class Unloaded(ServerError):
    """The process answers, but does not hold the version: TorchServe swallowed an error at start."""


class BadAnswer(ServerError):
    """The process's own API gave an answer that we do not understand."""
