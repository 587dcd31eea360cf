"""A model's stages: which version each serves, and which good versions it served before."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

HISTORY_LIMIT = 20
"""How many earlier versions of a stage a rollback can step back through."""


class Name(StrEnum):
    PRODUCTION = "production"
    STAGING = "staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of one model."""

    model: str
    name: Name
    stable: int | None = None
    candidate: int | None = None
    """Version that an active rollout is loading; never equal to ``stable``."""
    history: tuple[int, ...] = ()
    """Versions that were stable and were replaced by a newer one, the latest last; never contains ``stable``."""
    replaced_at: datetime | None = None

    @property
    def last_good(self) -> int | None:
        """The version that a rollback returns to."""
        return self.history[-1] if self.history else None

    def promoted(self, version: int, *, at: datetime) -> Stage:
        """The stage once ``version`` has become stable: the version before it is the one to fall back to."""
        history = [known for known in self.history if known != version]
        if self.stable is not None and self.stable != version:
            history = [known for known in history if known != self.stable] + [self.stable]
        return dataclasses.replace(
            self, stable=version, candidate=None, history=tuple(history[-HISTORY_LIMIT:]), replaced_at=at
        )

    def rolled_back(self, version: int, *, at: datetime) -> Stage:
        """The stage once it has gone back to ``version``: what was just left behind is no version to fall back to."""
        history = self.history[: self.history.index(version)] if version in self.history else self.history
        return dataclasses.replace(self, stable=version, candidate=None, history=history, replaced_at=at)
