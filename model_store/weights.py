"""Bring a seed config's weights out of the bucket that the config names."""

from __future__ import annotations

from pathlib import Path

from model_store import parts, settings, spec, store


def bring(
    source: spec.Spec, where: settings.Settings, folder: Path, *, progress: parts.Progress | None = None
) -> spec.Spec:
    """The spec with all its files on this disk: unchanged unless its weights lie in the bucket.

    Args:
        where: how to talk to the store; the bucket is the one of the seed config.
        folder: weights go here, an interrupted download is resumed from here.

    Raises:
        ObjectMissing: they do not lie there either.
        NoSpace, StoreError: see :mod:`model_store.faults`.
    """
    if source.missing_weights is None or source.store_url is None:
        return source
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(source.missing_weights).name
    store.Store(where.at(source.store_url)).fetch_file(source.missing_weights, target, progress=progress)
    return spec.with_weights(source, target)
