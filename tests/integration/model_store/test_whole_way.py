"""From a seed config whose weights lie in the bucket to an unpacked copy on another machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from model_store import archive, cache, errors, provenance, settings, spec, store, weights
from tests.support import seaweed

pytestmark = pytest.mark.integration


def test_a_seed_config_becomes_a_version_that_a_replica_can_unpack(
    make_settings: Callable[..., settings.Settings], weed: seaweed.Seaweed, bucket: str, tmp_path: Path
) -> None:
    body = os.urandom(6 * 1024 * 1024)
    weed.client().put_object(Bucket=bucket, Key="resnet50.pth", Body=body)
    (tmp_path / "serving.yaml").write_text(
        f"model_store: s3://{bucket}/\n"
        "models:\n"
        "  resnet50: {model_file: resnet50.pth, handler: image_classifier}\n"
        "  absent: {model_file: resnet18.pth, handler: image_classifier}\n"
    )
    loaded, absent = spec.load(tmp_path / "serving.yaml")
    with pytest.raises(errors.SpecError, match="put it there, or into s3://"):
        archive.stage(loaded, tmp_path / "stage")
    with pytest.raises(errors.ObjectMissing, match=r"resnet18\.pth"):
        weights.bring(absent, make_settings(), tmp_path / "weights")

    complete = weights.bring(loaded, make_settings(), tmp_path / "weights")
    packed = archive.pack(archive.stage(complete, tmp_path / "stage"), tmp_path / "resnet50.mar")
    remote = store.Store(make_settings())
    document = remote.publish(packed.path, provenance.manifest_for(packed, complete))

    there = cache.Cache(tmp_path / "cache", 100 * 1024 * 1024)
    with there.acquire(remote, document.digest, document.size_bytes) as lease:
        archive.unpack(lease.archive, tmp_path / "copy", limits=archive.Limits(unpacked_bytes=document.unpacked_bytes))
    assert (tmp_path / "copy" / "resnet50.pth").read_bytes() == body
    assert document.config.architecture == "torchvision:resnet50"
    assert not (tmp_path / "copy" / "resnet50.pth").samefile(tmp_path / "weights" / "resnet50.pth")
