"""Fixtures of this folder."""

from tests.quality.prometheus_server import prometheus

__all__ = ["prometheus"]
