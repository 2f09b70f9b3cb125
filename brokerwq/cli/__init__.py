"""The command ``brokerwq``: one module for each group of verbs.

Whatever costs time to import is imported inside the verbs that need it.
"""

from brokerwq.cli.main import main

__all__ = ["main"]
