"""Rules about the tracked files that no linter knows: module size, no traces of one machine.

Run from the top of the checkout; prints one line per fault and exits 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 400
BINARY = frozenset({".png", ".jpg", ".db", ".gz"})
PERSONAL_PATH = re.compile(r"(?<![\w.~<}/-])/(?:root|work|Users|home/(?!\.\.\.)\w+)/")
REGISTRY = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|deb\.debian\.org)\b")
HERE = "tools/check_sources.py"


def tracked_files() -> list[Path]:
    """What git tracks and what it would add, relative to the current directory."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    names = sorted(set(listing.stdout.split("\0")) - {"", HERE})
    return [Path(name) for name in names if Path(name).is_file()]


def faults_in(path: Path) -> Iterator[str]:
    """One line for each rule that ``path`` breaks."""
    if path.suffix in BINARY:
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if (
        path.suffix == ".py"
        and path.parts[0] in ("brokerwq", "adapters")
        and len(lines) > MAX_LINES
    ):
        yield f"{path}: {len(lines)} lines; a module has at most {MAX_LINES}"
    for number, line in enumerate(lines, 1):
        if found := PERSONAL_PATH.search(line):
            yield f"{path}:{number}: a path of one machine: {found.group()}"
        if found := REGISTRY.search(line):
            yield f"{path}:{number}: the address of a package registry: {found.group()}"


def main() -> int:
    """Check every file; the exit code."""
    faults = [fault for path in tracked_files() for fault in faults_in(path)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
