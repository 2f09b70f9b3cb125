"""What is in the wheel and in the source distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [
    "brokerwq",
    "pytest_brokerwq",
    *sorted(p.name for p in (ROOT / "adapters").glob("brokerwq_*")),
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=110,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return set(archive.namelist())


def sources(package: str) -> set[str]:
    top = ROOT / package if (ROOT / package).exists() else ROOT / "adapters" / package
    return {
        f"{package}/{path.relative_to(top).as_posix()}"
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_package_whole(wheel: set[str]) -> None:
    for package in PACKAGES:
        assert sources(package) <= wheel


def test_the_wheel_holds_nothing_else(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == set(PACKAGES)


def test_every_package_says_that_it_is_typed(wheel: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel


def test_every_scheme_names_an_adapter_in_the_wheel(built: Path, wheel: set[str]) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        name = next(name for name in wheel if name.endswith("entry_points.txt"))
        parser = ConfigParser(delimiters=("=",))
        parser.read_string(archive.read(name).decode())

    assert parser["console_scripts"]["brokerwq"] == "brokerwq.cli:main"
    adapters = dict(parser["brokerwq.adapters"])
    assert {"memory", "sqlite"} <= set(adapters)
    for value in adapters.values():
        assert f"{value.partition(':')[0]}/__init__.py" in wheel


def test_the_source_distribution_holds_what_the_tests_need_and_no_strays(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "tests/conftest.py"} <= names
    tops = {name.split("/")[0] for name in names if name}
    assert tops <= {
        *(
            "brokerwq",
            "pytest_brokerwq",
            "adapters",
            "tests",
            "localstack",
            "examples",
            "docs",
            "tools",
            "benchmarks",
        ),
        *("pyproject.toml", "Makefile", "PKG-INFO", ".gitignore"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    }
