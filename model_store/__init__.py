"""The model store: what a model version is, how it is packed, kept in a bucket, brought to a machine and proven.

Knows S3 and files; knows neither torch nor the rest of Slipway. The way of a version through the modules::

    spec.load → weights.bring → archive.stage → archive.pack → provenance.manifest_for → store.Store.publish
    cache.Cache.acquire (store.Store.fetch) → archive.unpack

Import the modules, not this package: ``manifest`` and ``errors`` come without boto3 that way.
"""
