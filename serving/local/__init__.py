"""The local stack: every part of Slipway as a real process on this machine, under one supervisor.

``home`` (what lies where) → ``checks``, ``ports``, ``leftovers`` (before anything starts) → ``parts`` (what is run) →
``supervisor`` (keeps it running) → ``running`` (a stack's whole life) → ``background`` (the same without a terminal).
"""

from __future__ import annotations
