"""Names for rollouts that sort by the time of their making, so that paging needs no second column."""

from __future__ import annotations

import secrets
from datetime import datetime


def rollout_id(now: datetime) -> str:
    """``ro-`` and 18 hexadecimal digits: 12 of milliseconds since 1970, 6 of chance."""
    return f"ro-{int(now.timestamp() * 1000):012x}{secrets.token_hex(3)}"
