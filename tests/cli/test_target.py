from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.stock import Cli

APP = "from brokerwq import App\napp = App('memory://')\nspare = App('memory://')\n"

Write = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current directory; its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delenv("BROKERWQ_APP", raising=False)

    def write(text: str) -> str:
        name = f"target_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_the_app_may_be_named_in_the_environment(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_APP", f"{write(APP)}:app")

    assert cli("config", "show", "--json").json[0]["value"] == "memory://"


def test_the_app_may_be_named_in_pyproject(cli: Cli, write: Write) -> None:
    Path("pyproject.toml").write_text(f'[tool.brokerwq]\napp = "{write(APP)}:app"\n')

    assert cli("config", "show", "--json").json[0]["value"] == "memory://"


def test_a_setting_that_is_misspelt_in_the_environment_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_SLOT", "3")

    shown = cli("config", "show", "--json")

    assert "BROKERWQ_SLOT is no setting and changes nothing; is BROKERWQ_SLOTS meant?" in shown.err
    assert shown.code == 0


def test_an_app_below_another_name_is_found(cli: Cli, write: Write) -> None:
    module = write(f"{APP}class Space:\n    inner = app\n")

    assert cli("config", "show", f"{module}:Space.inner").code == 0


@pytest.mark.parametrize(
    ("text", "spec", "fault"),
    [
        (APP, "{module}", "is no MODULE:ATTR; write for example jobs:app"),
        (APP, "{module}:", "is no MODULE:ATTR"),
        (APP, "{module}:ap", "module {module} has no ap; it has app, spare"),
        ("", "{module}:app", "module {module} has no app; it holds no App at all"),
        ("app = 7\n", "{module}:app", "{module}:app is of type int, not brokerwq.App"),
        (APP, "no_such_module:app", "there is no module no_such_module, neither in "),
        (APP, "no_such.module:app", "there is no module no_such, neither in "),
        ("\nimport nowhere_at_all\n", "{module}:app", "No module named 'nowhere_at_all'"),
        ("\n1 / 0\n", "{module}:app", "ZeroDivisionError: division by zero ({module}.py line 2)"),
        ("\nif:\n", "{module}:app", "SyntaxError: invalid syntax ({module}.py line 2)"),
        ("raise SystemExit(3)\n", "{module}:app", "SystemExit: 3 ({module}.py line 1)"),
    ],
)
def test_a_wrong_target_gets_one_clear_line(
    cli: Cli, write: Write, text: str, spec: str, fault: str
) -> None:
    module = write(text)

    answer = cli("run", spec.format(module=module))
    if "is no MODULE" in fault:  # without a colon it is taken for a queue of the default app
        answer = cli("queues", "ls", "--app", spec.format(module=module))

    assert answer.code == 2
    assert fault.format(module=module) in answer.err
    assert answer.err.count("\n") == 1


def test_without_any_app_the_ways_to_name_one_are_said(cli: Cli, write: Write) -> None:
    del write
    answer = cli("run")

    assert answer.code == 2
    assert "give MODULE:ATTR (for example jobs:app), set BROKERWQ_APP, or write" in answer.err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[tool", "./pyproject.toml cannot be read"),
        ("[tool.brokerwq]\napp = 7\n", 'app must be "MODULE:ATTR", not 7'),
        ('[tool.brokerwq]\napp = "gone_away:app"\n', "(from [tool.brokerwq] in ./pyproject.toml)"),
    ],
)
def test_a_wrong_pyproject_is_named(cli: Cli, write: Write, text: str, fault: str) -> None:
    del write
    Path("pyproject.toml").write_text(text)

    answer = cli("run")

    assert answer.code == 2
    assert fault in answer.err


def test_an_app_with_a_wrong_setting_is_one_line(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_SLOTS", "many")

    answer = cli("run", f"{write(APP)}:app")

    assert answer.code == 2
    assert "BROKERWQ_SLOTS is 'many'" in answer.err
    assert answer.err.count("\n") == 1


def test_a_password_is_never_said(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    del write
    monkeypatch.setenv("BROKERWQ_URL", "nothing://user:hunter2@host/")

    answers = [cli("config", "show"), cli("queues", "ls"), cli("conform", "x://a:hunter2@b")]

    assert [answer.code for answer in answers] == [0, 2, 2]
    assert "hunter2" not in "".join(answer.out + answer.err for answer in answers)


def test_a_look_in_the_wrong_folder_leaves_no_broker_behind(
    cli: Cli, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del write
    monkeypatch.delenv("BROKERWQ_URL", raising=False)

    answer = cli("queues", "ls")

    assert answer.code == 2
    assert "give --url or --app" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_verb_for_one_broker_says_which_of_several_it_means(cli: Cli, write: Write) -> None:
    module = write(
        "from brokerwq import App\n"
        "app = App(['memory://old-one', 'memory://new-one'], send_to='memory://new-one')\n"
    )
    note = "brokerwq: the app has several brokers; this is memory://new-one, --url names another"

    assert cli("queues", "ls", "--app", f"{module}:app", "--json").err.startswith(note)
    for broker in ("memory://old-one", "memory://new-one"):
        answer = cli("queues", "ls", "--app", f"{module}:app", "--url", broker)
        assert "several brokers" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "thumbs"], "'thumbs' is taken for a queue, and no app is named: write thumbs:app"),
        (["enqueue", "thumbs", "n=1"], "'thumbs' is taken for a worker"),
        (["drain", "my-queue"], "write MODULE:ATTR before my-queue"),
    ],
)
def test_a_module_without_its_attribute_is_told_what_it_was_taken_for(
    cli: Cli, write: Write, arguments: list[str], hint: str
) -> None:
    del write
    answer = cli(*arguments)

    assert answer.code == 2
    assert hint in answer.err
