"""What the documentation lists is what the code has: no more, no less, and with the same values."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from brokerwq_sqlite.settings import SqliteSettings

from brokerwq import (
    App,
    Job,
    Once,
    QueueSpec,
    RetryPolicy,
    Runner,
    RunReport,
    Tx,
    events,
)
from brokerwq.driver import Consumer, Driver
from brokerwq.driver.registry import find_adapter
from brokerwq.errors import ConfigError
from brokerwq.settings import Settings
from brokerwq.telemetry import _names, logs
from brokerwq.workers.options import SendOptions

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")
TELEMETRY = (DOCS / "telemetry.md").read_text(encoding="utf-8")
WORKERS = (DOCS / "workers.md").read_text(encoding="utf-8")

MODULES = re.findall(r"^### (brokerwq\S*)$", REFERENCE, re.MULTILINE)
PACKAGES = """
    brokerwq brokerwq.codecs brokerwq.dead_letters brokerwq.driver brokerwq.errors brokerwq.events
    brokerwq.idempotency brokerwq.migrate brokerwq.telemetry brokerwq.testing
    brokerwq.testing.faults brokerwq.testing.mishap brokerwq.testing.stores
"""

INTERNAL = {
    "BROKERWQ_DEMO",  # the verb `demo` to its own app
    "BROKERWQ_LINK",  # a parent to its runner processes
    "BROKERWQ_TEST_RUN",  # a test run to its own processes
    "BROKERWQ_TEST_AMQP_URL_4_0",  # of brokerwq's own tests, as the next two
    "BROKERWQ_TEST_AMQP_URL_4_3",
    "BROKERWQ_TEST_RABBITMQ",
}
ELSEWHERE = {"BROKERWQ_QUEUES"}  # of the containers in localstack/


def section(text: str, heading: str) -> str:
    level = heading.split(maxsplit=1)[0]
    rest = text.partition(f"\n{heading}\n")[2]
    assert rest, heading
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The names in the first cells of a section's table rows."""
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def names_of(module: ModuleType) -> set[str]:
    said = getattr(module, "__all__", None)
    if said is not None:
        return set(said)
    own = {name for name, thing in vars(module).items() if _is_at_home(thing, module)}
    return {name for name in own if not name.startswith("_")}


def _is_at_home(thing: object, module: ModuleType) -> bool:
    is_named = inspect.isclass(thing) or inspect.isfunction(thing)
    return is_named and thing.__module__ == module.__name__


def arguments(callable_: object) -> set[str]:
    assert callable(callable_)
    kinds = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    found = inspect.signature(callable_).parameters.values()
    return {each.name for each in found if each.kind not in kinds} - {"self"}


def test_every_public_package_is_listed() -> None:
    assert set(MODULES) == set(PACKAGES.split())


@pytest.mark.parametrize("module", MODULES)
def test_the_names_listed_are_those_that_can_be_imported(module: str) -> None:
    listed = first_cells(section(REFERENCE, f"### {module}"))

    assert sorted(listed) == sorted(names_of(importlib.import_module(module)))


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("## App", arguments(App)),
        ("## Worker", arguments(App.worker) - {"queue"}),
        ("## Runner", (arguments(Runner) | arguments(App.drain)) - {"app"}),
        ("## Queue", {field.name for field in fields(QueueSpec)}),
    ],
)
def test_every_argument_is_listed(heading: str, expected: set[str]) -> None:
    assert set(first_cells(section(REFERENCE, heading))) == expected


@pytest.mark.parametrize(
    "module", ["sqlite", "asyncpg", "psycopg", "sqlalchemy", "redis", "dynamodb"]
)
def test_every_argument_of_a_store_is_listed(module: str) -> None:
    name = f"{module.capitalize()}Store"
    store = getattr(importlib.import_module(f"brokerwq.idempotency.stores.{module}"), name)
    table = section(REFERENCE, "## Stores")
    (row,) = re.findall(rf"^\| .*`{name}`.* \| (.*) \|$", table, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", row)) - {"brokerwq"} == arguments(store)


def test_everything_of_a_job_is_listed() -> None:
    public = {name for name in dir(Job) if not name.startswith("_")} - {"take_children"}

    assert set(first_cells(section(REFERENCE, "## Job"))) == public


@pytest.mark.parametrize(
    ("heading", "of"),
    [("## Runner", RunReport), ("## Worker", RetryPolicy), ("## Worker", Once)],
)
def test_every_field_is_named(heading: str, of: type[RunReport | RetryPolicy | Once]) -> None:
    text = section(REFERENCE, heading)

    assert [each.name for each in fields(of) if f"`{each.name}`" not in text] == []


def test_everything_of_a_transaction_is_named() -> None:
    text = section(REFERENCE, "## Job")

    assert [name for name in dir(Tx) if name[0] != "_" and f"`{name}`" not in text] == []


def test_every_option_of_an_enqueue_is_listed() -> None:
    listed = first_cells(section(WORKERS, "### Delays and other options"))

    assert set(listed) == set(SendOptions.__annotations__)


def test_the_settings_are_listed_with_their_defaults_and_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for setting in Settings.model_fields:
        monkeypatch.delenv(f"BROKERWQ_{setting.upper()}", raising=False)
    units = {"": "", "attempts": ""}
    expected = [
        f"| `{each.variable}` | {each.value} | {each.range}"
        f"{units.get(each.unit, f' ({each.unit})')} | {each.description} |"
        for each in Settings.load().describe()
    ]

    listed = section(REFERENCE, "## Settings").partition("\n### ")[0]

    assert [line for line in listed.splitlines() if line.startswith("| `")] == expected


def test_every_extra_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    listed = first_cells(section(REFERENCE, "## Extras"))

    assert set(listed) == set(project["optional-dependencies"])


@pytest.mark.slow
def test_every_environment_variable_is_listed_and_no_other() -> None:
    sources = [
        path
        for folder in ("brokerwq", "adapters", "pytest_brokerwq")
        for path in (ROOT / folder).rglob("*.py")
    ]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    settings = {f"BROKERWQ_{name.upper()}" for name in Settings.model_fields}
    sqlite = {f"BROKERWQ_SQLITE_{name.upper()}" for name in SqliteSettings.model_fields}
    read = variables(sources) - INTERNAL | settings | (sqlite - {"BROKERWQ_SQLITE_PATH"})

    assert set(re.findall(r"`(BROKERWQ_\w+)`", REFERENCE)) == read
    assert variables(pages) - read - ELSEWHERE == set()


def variables(paths: list[Path]) -> set[str]:
    pattern = re.compile(r"\bBROKERWQ(?:_[A-Z0-9]+)+\b")
    return {name for path in paths for name in pattern.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("page", "url"),
    [
        ("memory", "memory://"),
        ("sqlite", "sqlite:///jobs.db"),
        ("rabbitmq", "amqp://localhost/"),
        ("sqs", "sqs://eu-west-1/shop"),
    ],
)
def test_every_option_of_an_url_is_listed(page: str, url: str) -> None:
    with pytest.raises(ConfigError) as told:
        find_adapter(url).parse_url(f"{url}?nonsense=1")
    known = re.findall(r"\w+", str(told.value).partition("known: ")[2])

    text = (DOCS / "brokers" / f"{page}.md").read_text(encoding="utf-8")
    table = re.split(r"^\| option \|", text, maxsplit=1, flags=re.MULTILINE)[1].partition("\n\n")[0]

    assert sorted(first_cells(table)) == sorted(known)


def test_every_metric_and_attribute_is_listed() -> None:
    constants = {
        value
        for name, value in vars(_names).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    named = set(re.findall(r"`((?:messaging|brokerwq|server|error)\.[\w.]+)`", TELEMETRY))
    exceptions = {name for name in constants if name.startswith("exception.")}

    assert constants - exceptions - named == set()
    assert {name for name in named - constants if not _is_module(name)} == set()


def _is_module(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute) or name == logs.LOGGER
    except ImportError:
        return False


def test_every_line_of_the_log_is_listed_under_its_level() -> None:
    lines = {*logs.ENDED.values(), *logs.LINES.values()}
    lines -= {logs.LINES[events.JobEnded]}  # stands for outcomes that are not there yet
    table = section(TELEMETRY, "## Logs")

    for level, text in lines:
        name = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR"}[level]
        (row,) = re.findall(rf"^\| {name} \| (.*) \|$", table, re.MULTILINE)
        assert f"`{text}`" in row, (name, text)


def test_every_proof_of_a_guarantee_is_there() -> None:
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    checks = (ROOT / "tests" / "contract" / "checks.txt").read_text(encoding="utf-8").split()
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", text)

    assert [name for name in named if name not in checks] == []
    assert [
        (path, name)
        for path, name in tests
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ] == []


def test_every_guarantee_has_its_proofs() -> None:
    table = section((ROOT / "README.md").read_text(encoding="utf-8"), "## What is guaranteed")
    proofs = (DOCS / "guarantees.md").read_text(encoding="utf-8")

    promised = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    proven = re.findall(r"^\| ([^|]+) \|", proofs, re.MULTILINE)

    assert len(promised) > 1
    assert [row for row in promised if row not in proven] == []


@pytest.mark.parametrize("protocol", [Driver, Consumer])
def test_every_method_of_the_contract_is_listed(protocol: type) -> None:
    text = (DOCS / "adapters.md").read_text(encoding="utf-8")
    table = text.partition(f"\n| `{protocol.__name__}` | does |\n")[2].partition("\n\n")[0]

    listed = {name.partition("(")[0] for name in first_cells(table)}

    assert listed == {name for name in vars(protocol) if not name.startswith("_")}


def test_every_module_has_its_place_in_the_picture_of_the_layers() -> None:
    picture = section((DOCS / "architecture.md").read_text(encoding="utf-8"), "## Layers")
    modules = {path.stem for path in (ROOT / "brokerwq").iterdir() if path.suffix in ("", ".py")}

    missing = modules - {"__init__", "__main__", "__pycache__"} - set(re.findall(r"\w+", picture))

    assert missing == set()
