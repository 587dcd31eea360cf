"""The database: SQLite or PostgreSQL behind the same three kinds of transaction (``engine``).

``tables`` says what the rows mean, ``migrate`` brings them about; the rest reads and writes them, one area to a
module: ``registry``, ``stages``, ``reports``, ``published``, ``events``, ``idempotency``. ``facts`` reads all that the
rules ask for, ``signals`` tells other control planes of changes.
"""
