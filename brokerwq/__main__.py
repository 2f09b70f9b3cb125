"""``python -m brokerwq`` is the command ``brokerwq``."""

import sys

from brokerwq.cli import main

if __name__ == "__main__":
    sys.exit(main())
