"""What can go wrong in the gateway, under one base."""

from __future__ import annotations


class GatewayError(Exception):
    """Base of every error that this package raises."""


class InvalidSetting(GatewayError):
    """An environment variable is missing or makes no sense."""


class EnvoyMissing(GatewayError):
    """There is no Envoy to start."""


class EnvoyUnreachable(GatewayError):
    """Envoy's admin interface does not answer."""


class ConfigurationRefused(GatewayError):
    """Envoy refused a configuration, or did not take it up in time; what it served before, it serves still."""


class TensorError(GatewayError):
    """A tensor of an Open Inference Protocol message contradicts itself."""
