"""Where the model store is, and how patiently to talk to it.

Credentials are not part of the settings unless a caller has them in hand (the local stack's own store): otherwise
boto3's chain finds them (environment, profile, web identity, container and instance roles).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import boto3.session
import botocore.config

from model_store import errors

MIB = 1024 * 1024
MIN_PART_BYTES = 5 * MIB
"""S3 refuses smaller parts, the last one excepted."""

Addressing = Literal["auto", "path", "virtual"]


def default_workers() -> int:
    """Eight connections fill a fast line to S3; with few cores more than two per core only fight for them."""
    return min(8, max(4, 2 * (os.cpu_count() or 2)))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One bucket, or a prefix of one.

    Attributes:
        prefix: empty, or ends with ``/``.
        endpoint: URL of an S3-compatible store; ``None`` is AWS (or what AWS_ENDPOINT_URL_S3 says).
        kms_key: encrypts with SSE-KMS under this key.
        workers: concurrent parts of one transfer. A transfer holds about ``(workers + 1) * part_bytes`` in memory.
        attempts: tries of one request, and tries of one part without a new byte.
        allow_unconditional: publish although the store cannot do conditional writes.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    addressing: Addressing = "auto"
    kms_key: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    part_bytes: int = 8 * MIB
    workers: int = field(default_factory=default_workers)
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 20.0
    attempts: int = 4
    allow_unconditional: bool = False

    def __post_init__(self) -> None:
        if self.part_bytes < MIN_PART_BYTES:
            raise errors.SettingsError(f"part_bytes is {self.part_bytes}; S3 takes parts of {MIN_PART_BYTES} and more")
        if self.addressing not in ("auto", "path", "virtual"):
            raise errors.SettingsError(
                f"SLIPWAY_STORE_ADDRESSING is {self.addressing!r}; expected auto, path or virtual"
            )

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @classmethod
    def from_url(cls, url: str, **others: Any) -> Settings:
        """Settings for ``s3://bucket[/prefix]``; ``others`` are further attributes.

        Raises:
            SettingsError: the URL is not of that form.
        """
        bucket, prefix = split_url(url)
        return cls(bucket=bucket, prefix=prefix, **others)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``SLIPWAY_STORE`` and its companions.

        Raises:
            SettingsError: ``SLIPWAY_STORE`` is not set, or a value is malformed.
        """
        env = os.environ if environment is None else environment
        if not configured(env):
            raise errors.SettingsError(
                "SLIPWAY_STORE is not set; expected the bucket as s3://bucket[/prefix]"
                " (and SLIPWAY_STORE_ENDPOINT for a store other than AWS)"
            )
        return cls.from_url(
            env["SLIPWAY_STORE"],
            endpoint=env.get("SLIPWAY_STORE_ENDPOINT") or None,
            region=env.get("SLIPWAY_STORE_REGION") or None,
            addressing=cast(Addressing, env.get("SLIPWAY_STORE_ADDRESSING") or "auto"),
            kms_key=env.get("SLIPWAY_STORE_KMS_KEY") or None,
            part_bytes=_integer(env, "SLIPWAY_STORE_PART_BYTES", 8 * MIB),
            workers=_integer(env, "SLIPWAY_STORE_WORKERS", default_workers()),
            allow_unconditional=env.get("SLIPWAY_STORE_ALLOW_UNCONDITIONAL", "") in ("1", "true"),
        )

    def environment(self) -> dict[str, str]:
        """The variables from which :meth:`from_env` reads these settings again; credentials only where set here."""
        optional = {
            "SLIPWAY_STORE_ENDPOINT": self.endpoint,
            "SLIPWAY_STORE_REGION": self.region,
            "SLIPWAY_STORE_KMS_KEY": self.kms_key,
            "SLIPWAY_STORE_PART_BYTES": str(self.part_bytes),
            "SLIPWAY_STORE_WORKERS": str(self.workers),
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "SLIPWAY_STORE_ALLOW_UNCONDITIONAL": "1" if self.allow_unconditional else None,
        }
        return {"SLIPWAY_STORE": self.url, "SLIPWAY_STORE_ADDRESSING": self.addressing} | {
            name: value for name, value in optional.items() if value
        }

    def at(self, url: str) -> Settings:
        """The same store's way of talking, at another ``s3://bucket[/prefix]``."""
        bucket, prefix = split_url(url)
        return dataclasses.replace(self, bucket=bucket, prefix=prefix)

    def client(self) -> Any:
        """A boto3 S3 client of its own session (sessions are not thread-safe, clients are).

        Bodies are neither signed nor given CRCs, unless an operation requires it: an archive carries a SHA-256 that
        is checked from end to end, hashing every part a second time costs as much as sending it, and several
        S3-compatible stores refuse the newer checksum headers.
        """
        config = botocore.config.Config(
            signature_version="s3v4",
            connect_timeout=self.connect_timeout_s,
            read_timeout=self.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            max_pool_connections=self.workers + 2,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": self.addressing, "payload_signing_enabled": False},
        )
        session = boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        region = None if session.region_name else "us-east-1"
        return session.client("s3", endpoint_url=self.endpoint, region_name=region, config=config)


def configured(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a store at all."""
    env = os.environ if environment is None else environment
    return bool(env.get("SLIPWAY_STORE"))


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise errors.SettingsError(f"{name} is {text!r}; expected a whole number from 1")
    return int(text)


def split_url(url: str) -> tuple[str, str]:
    """``s3://bucket/some/prefix`` → ``("bucket", "some/prefix/")``.

    Raises:
        SettingsError: not such a URL.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise errors.SettingsError(f"{url!r} is not a model store; expected s3://bucket or s3://bucket/prefix")
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""
