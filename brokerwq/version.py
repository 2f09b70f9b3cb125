"""The version; apart, because modules below the public names need it."""

__version__ = "0.1.0"
