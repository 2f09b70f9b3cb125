"""Tools for tests: of programs that use brokerwq, and of adapters for other brokers."""

from brokerwq.testing.clock import FakeClock

__all__ = ["FakeClock"]
