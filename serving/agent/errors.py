"""What can stop the agent itself; a version's failure is never one of these: it is reported, not raised."""

from __future__ import annotations


class AgentError(Exception):
    """Base of this package's errors."""


class SettingsError(AgentError):
    """The environment lacks a setting, or holds one that cannot be used."""


class HomeInUse(AgentError):
    """Another agent works in the same home."""


class PortTaken(AgentError):
    """The agent's own port cannot be bound."""


class EndedEarly(AgentError):
    """A part of the agent ended that should live as long as it."""
