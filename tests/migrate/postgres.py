"""Ledgers in PostgreSQL: each test has a schema of its own on the shared server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.idempotency.postgres import server_url, shared_proxy, sql


@asynccontextmanager
async def postgres_ledger() -> AsyncGenerator[str]:
    """The URL of a ledger that is still to be made."""
    schema = f"ledger_{uuid.uuid4().hex}"
    try:
        yield f"{server_url()}?schema={schema}"
    finally:
        await sql(server_url(), f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def behind_proxy(url: str) -> str:
    """The same, as seen through ``shared_proxy``."""
    return url.replace(f":{urlsplit(url).port}/", f":{shared_proxy().port}/")


async def in_ledger(url: str, statement: str) -> list[object]:
    """The first column of what a statement answers in the schema of a ledger."""
    return await sql(url.replace("?schema=", "?search_path="), statement)
