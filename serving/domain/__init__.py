"""The rules of Slipway, as pure functions: no database, no network, no clock.

``facts`` (what may be known at one moment) → ``rollouts`` (the next step of each rollout) → ``assignments`` and
``routing`` (what follows for pools and gateways). ``stages`` and ``strategies`` are the words they use, ``wire`` the
messages between the parts.
"""
