"""What the README and the docs show is run, and what they name is there.

Of each document, in a folder of its own: Python blocks that begin with ``# name.py`` are written
to that file; the others are run, in order, as one program; then the commands of ``console``
blocks are run. Below a command stands a part of what it prints; ``…`` is any text. Above a
console block, ``<!-- not run: reason -->`` leaves it out.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import click
import pytest

from brokerwq.cli.main import brokerwq

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("*.md")]

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_NAMED = re.compile(r"# (\S+\.py)\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    reason: str | None


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(
            language=found["language"],
            text=dedent(found["text"]),
            line=text.count("\n", 0, found.start("text")) + 1,
            reason=found["reason"],
        )


PROGRAMS = [
    page
    for page in DOCUMENTS
    if {"python", "console"} & {block.language for block in blocks_of(page)}
]

RUN_BLOCKS = """
    import ast, asyncio, inspect, json, sys
    name, blocks = json.load(sys.stdin)
    space = {"__name__": "__docs__"}
    with asyncio.Runner() as runner:
        for line, text in blocks:
            # So many empty lines that a traceback names the line of the document.
            padded = "\\n" * (line - 1) + text
            code = compile(padded, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, space)
            if inspect.iscoroutine(result):
                async def finish(coroutine=result):
                    await coroutine
                runner.run(finish())
"""


def run(folder: Path, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BROKERWQ_")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PATH": path},
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def titled(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("document", PROGRAMS, ids=titled)
def test_what_is_shown_works(document: Path, tmp_path: Path) -> None:

    blocks = list(blocks_of(document))
    python = [block for block in blocks if block.language == "python"]
    for block in python:
        assert block.reason is None, "every Python block is run"
        if named := _NAMED.match(block.text):
            (tmp_path / named[1]).write_text(block.text)
    unnamed = [(block.line, block.text) for block in python if not _NAMED.match(block.text)]
    done = run(
        tmp_path,
        *(sys.executable, "-W", "error", "-c", dedent(RUN_BLOCKS)),
        given=json.dumps([titled(document), unnamed]),
    )
    assert done.returncode == 0, done.stderr

    for block in blocks:
        if block.language == "console" and block.reason is None:
            check_console(block, tmp_path)


def check_console(block: Block, folder: Path) -> None:
    commands: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ "), []))
        else:
            commands[-1][1].append(line)
    for command, expected in commands:
        done = run(folder, "bash", "-c", command)
        assert done.returncode == 0, f"line {block.line}: {command}\n{done.stdout}{done.stderr}"
        for line in expected:
            pattern = ".*".join(re.escape(part) for part in line.split("…"))
            assert re.search(f"^{pattern}$", done.stdout, re.MULTILINE), (
                f"line {block.line}: {command}: no {line!r} in\n{done.stdout}"
            )


def test_every_block_is_found() -> None:
    for document in DOCUMENTS:
        fences = re.findall(r"^ *```", document.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(list(blocks_of(document))), titled(document)


def test_every_named_file_is_python() -> None:
    for document in DOCUMENTS:
        for block in blocks_of(document):
            if block.language == "python":
                compile(block.text, titled(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=titled)
def test_every_file_and_link_that_is_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:brokerwq|adapters|tests|tools|docs|examples)/[\w./-]+)`", text)
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)

    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in linked if not (page.parent / link).exists()]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=titled)
def test_every_heading_that_is_linked_is_there(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))

    missing = [
        (link, anchor)
        for link, anchor in linked
        if anchor not in anchors(page.parent / link if link else page)
    ]

    assert missing == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_one_click_away() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    decisions = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")

    for page in (ROOT / "docs").rglob("*.md"):
        if page.parent.name == "adr" and page.name != "README.md":
            assert f"]({page.name})" in decisions
        else:
            assert f"]({titled(page)})" in readme


def verbs(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from verbs(inner, f"{path} {name}".strip())
    else:
        yield path, command


@pytest.mark.parametrize("page", PAGES, ids=titled)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`brokerwq ([a-z][^`]*)`", text)
    typed = re.findall(r"^ *\$ (?:.*[|(] *|\w+=\S+ )?brokerwq ([a-z].*)$", text, re.MULTILINE)

    for line in [*inline, *typed]:
        words = re.split(r'[")|]', line)[0].split()
        command: click.Command = brokerwq
        while isinstance(command, click.Group) and words and words[0].islower():
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        shown = {word for word in words if word.startswith("--")}
        assert shown <= {*options, "--help"}, line


def section_of(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("path", "command"), list(verbs(brokerwq)))
def test_every_verb_and_option_is_documented(path: str, command: click.Command) -> None:
    section = section_of(
        (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), path.split(maxsplit=1)[0]
    )

    assert path in section
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "help":
            names = [*parameter.opts, *parameter.secondary_opts]
            assert any(f"`{name}" in section or f" {name} " in section for name in names), names


def test_no_verb_is_documented_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

    groups = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))

    assert groups == set(brokerwq.commands)
