"""A process that holds an archive of a shared cache until its stdin ends: run by test_shared_cache."""

from __future__ import annotations

import sys
from pathlib import Path

from model_store import cache, settings, store


def main() -> None:
    root, limit, digest, size = sys.argv[1:]
    bucket = store.Store(settings.Settings.from_env())
    with cache.Cache(Path(root), int(limit)).acquire(bucket, digest, int(size)) as lease:
        sys.stdout.write(f"{lease.archive}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
