"""Fetch the sample photographs of scikit-image for the demo: ``sample_photos.py FOLDER``.

The package is downloaded as a user of pip would, but not installed: only its pictures are
taken out. Without network, or where it has no wheel for this Python, the demo does without.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "scikit-image"
SUFFIXES = (".png", ".jpg")
SMALLEST = 15_000  # bytes; below are icons and test patterns, not photographs


def fetch(folder: Path) -> int:
    """Put the pictures into ``folder``; how many there are."""
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(  # noqa: S603  -- our own interpreter, constant arguments
            [
                *(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"),
                *("download", "--no-deps", "--only-binary=:all:", "--dest", temporary, PACKAGE),
            ],
            check=True,
            timeout=60,
        )
        wheel = next(Path(temporary).glob("*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith(SUFFIXES) and entry.file_size >= SMALLEST:
                    (folder / Path(entry.filename).name).write_bytes(archive.read(entry))
                    count += 1
    return count


def main() -> None:
    """Fetch once; say so when it cannot be done, and let the demo go on."""
    folder = Path(sys.argv[1])
    if folder.is_dir() and any(folder.iterdir()):
        return
    try:
        count = fetch(folder)
    except (OSError, subprocess.SubprocessError, StopIteration, zipfile.BadZipFile) as error:
        print(f"no sample photographs ({type(error).__name__}): all pictures will be generated")
    else:
        print(f"{count} photographs from {PACKAGE}")


if __name__ == "__main__":
    main()
