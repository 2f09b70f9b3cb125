"""What import-linter cannot say: what an adapter may import, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ADAPTERS = sorted(path for path in (ROOT / "adapters").glob("brokerwq_*") if path.is_dir())

# What an adapter may know of the core (docs/architecture.md); everything else is the core's own.
FOR_ADAPTERS = {
    "brokerwq.driver",
    "brokerwq.message",
    "brokerwq.envelope",
    "brokerwq.errors",
    "brokerwq.clock",
    "brokerwq.durations",
}
CLIENTS = {"aio_pika", "aiormq", "pamqp", "aioboto3", "aiobotocore", "boto3", "botocore", "sqlite3"}
HEAVY = CLIENTS | {"opentelemetry", "pydantic_settings", "click", "rich", "PIL", "pytest"}


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever it does so."""
    package = "brokerwq"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            if node.module == package:  # `from brokerwq import envelope` names a module
                yield from (f"{package}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def is_below(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_imports_nothing_of_the_core_but_the_contract(adapter: Path) -> None:
    forbidden = [
        f"{path.name}: {module}"
        for path in adapter.rglob("*.py")
        for module in imports_of(path)
        if is_below(module, {"brokerwq"}) and not is_below(module, FOR_ADAPTERS)
    ]

    assert forbidden == []


@pytest.mark.slow
def test_only_telemetry_imports_opentelemetry() -> None:
    found = {
        path.relative_to(ROOT / "brokerwq").parts[0]
        for path in (ROOT / "brokerwq").rglob("*.py")
        if any(is_below(module, {"opentelemetry"}) for module in imports_of(path))
    }

    assert found == {"telemetry"}


@pytest.mark.slow
def test_only_the_command_line_imports_what_draws_it() -> None:
    found = {
        path.relative_to(ROOT / "brokerwq").parts[0]
        for path in (ROOT / "brokerwq").rglob("*.py")
        if any(is_below(module, {"click", "rich"}) for module in imports_of(path))
    }

    assert found == {"cli"}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.slow
def test_importing_brokerwq_loads_no_client_and_nothing_heavy() -> None:
    loaded = set(run("import sys, brokerwq; print('\\n'.join(sys.modules))").split())

    assert "brokerwq.app" in loaded
    assert {module for module in loaded if is_below(module, HEAVY)} == set()


@pytest.mark.slow
def test_finding_an_adapter_loads_no_client() -> None:
    code = """
        import sys
        from brokerwq.driver.registry import find_adapter, schemes
        for scheme in schemes():
            find_adapter(f"{scheme}://")
        print("\\n".join(sys.modules))
    """
    loaded = set(run(code.replace("\n        ", "\n")).split())

    assert "brokerwq_sqlite" in loaded
    assert {module for module in loaded if is_below(module, CLIENTS)} == set()


@pytest.mark.slow
def test_importing_brokerwq_takes_under_150_milliseconds() -> None:
    # Processor time, the best of several: what others do on this machine is not the question.
    code = "import time; t = time.process_time(); import brokerwq; print(time.process_time() - t)"

    assert min(float(run(code)) for _ in range(5)) < 0.150


@pytest.mark.slow
def test_the_commands_help_takes_under_400_milliseconds() -> None:
    code = """
        import sys, time
        from brokerwq.cli import main
        sys.stdout, out = open("/dev/null", "w"), sys.stdout
        assert main(["--help"]) == 0
        print(time.process_time(), file=out)
    """

    assert min(float(run(code.replace("\n        ", "\n"))) for _ in range(3)) < 0.400


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the list of tracked files")
def test_the_sources_keep_the_rules_that_no_linter_knows() -> None:
    done = subprocess.run(
        [sys.executable, "tools/check_sources.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, "")
