"""Benchmarks: ``python -m bench [--only NAME]``. Ratios hold between machines, absolute numbers do not.

Every benchmark measures its baseline in the same run, in rounds that take turns (A B A B …), so that what disturbs
the machine disturbs both.
"""
