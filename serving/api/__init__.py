"""The control plane's HTTP face: thin views over ``serving.db`` and ``serving.rollout``.

``app`` puts it together, ``settings`` says with what; ``models``, ``rollouts``, ``replicas``, ``gateways``, ``events``
and ``health`` are the views; ``problems``, ``paging``, ``idempotency``, ``routes`` and ``bodies`` are what they share.
"""
