"""Carries out what the rules decide.

``promotions`` (what a person may ask) → ``reconciler`` (one transaction: facts in, next steps out) → ``controller``
(when it runs) → ``board`` (what everybody who waits is told).
"""
