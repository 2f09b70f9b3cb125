"""Private: all concurrency lives here.

Knows drivers, messages and plain values; neither pydantic nor OpenTelemetry.
"""
