"""One TorchServe process for exactly one model version: configured before it starts, never changed after.

Everything that knows TorchServe by name stands in this package; the agent above it speaks of *server processes*.
"""

from __future__ import annotations
