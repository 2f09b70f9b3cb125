from __future__ import annotations

import pytest

from brokerwq.driver.support import url_options
from brokerwq.testing.brokers import BrokerUnderTest


@pytest.mark.parametrize("url", ["sqs://eu-west-1/t", "sqs://eu-west-1/t?max_wait=1"])
def test_options_are_added_as_an_adapter_reads_them(url: str) -> None:
    broker = BrokerUnderTest(name="sqs", url=url)

    changed = broker.with_options(fifo=True, clients="a:b", endpoint_url="http://h/?a=1&b=2")

    assert changed.startswith(f"{url}{'&' if '?' in url else '?'}fifo=true&")
    known: dict[str, type[object]] = dict.fromkeys(
        ("fifo", "clients", "endpoint_url", "max_wait"), str
    )
    found = url_options(changed, known)
    assert (found["clients"], found["endpoint_url"]) == ("a:b", "http://h/?a=1&b=2")
    assert broker.with_options() == url
