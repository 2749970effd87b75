"""URLs, keys and what a server says about itself: without a server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from redis.crc import key_slot

from everthread import InvalidValueError
from everthread.stores.valkey import layout, server_info
from everthread.stores.valkey.server_info import (
    FULL,
    NOTHING,
    PROCESS,
    SECOND,
    SNAPSHOT,
    UNKNOWN,
    read_durability,
)
from everthread.stores.valkey.settings import read_url


def test_urls() -> None:
    plain = read_url("valkey://localhost", "full")
    assert (plain.nodes, plain.db, plain.tls, plain.password) == ((("localhost", 6379),), 0, False, None)
    url = "rediss://us%40er:p%3Aw%2F@h1:7000,h2,[::1]:7002/3?prefix=my.app&timeout_ms=500&connections=2&cluster=true"
    found = read_url(url, "process")
    assert found.nodes == (("h1", 7000), ("h2", 6379), ("::1", 7002))
    assert (found.username, found.password, found.db, found.tls) == ("us@er", "p:w/", 3, True)
    assert (found.prefix, found.timeout_s, found.connections, found.cluster) == ("my.app", 0.5, 2, True)
    assert found.url == "rediss://h1:7000,h2:6379,[::1]:7002/3?prefix=my.app"
    assert "p:w" not in found.url
    assert read_url("redis://:secret@h", "full").username is None
    assert read_url("redis://h?prefix=a", "full").prefix == "a"


@pytest.mark.parametrize(
    "url",
    [
        "valkey:host",
        "valkey://h/x",
        "valkey://h:port/0",
        "valkey://h/0?prefix=a{b}",
        "valkey://h/0?prefix=*",
        "valkey://h/0?prefix=",
        "valkey://h/0?timeout_ms=0",
        "valkey://h/0?connections=-1",
        "valkey://h/0?cluster=1",
        "valkey://h/0?unknown=1",
    ],
)
def test_bad_urls_say_what_is_wrong(url: str) -> None:
    with pytest.raises(InvalidValueError):
        read_url(url, "full")


def test_a_bad_url_doesnt_show_its_password() -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_url("valkey://u:geheim@h:port/0?x=1", "full")
    assert "geheim" not in str(caught.value)


def test_names_never_stand_in_keys() -> None:
    made = layout.Keys("p")
    for name in ("{evil}", "*", "a:b", "\n", "x" * 1000, "'; redis.call('FLUSHALL')"):
        for key in (made.family(layout.name_tag("s", name)), made.space(name), made.stream(name, name)):
            assert key.isascii()
            assert len(key) < 60
            assert key.count(b"{") == key.count(b"}") == 1
    assert layout.digest("ab", "c") != layout.digest("a", "bc"), "each part comes with its length"


def test_a_line_number_leads_to_its_slot() -> None:
    for tag, member in (("00000000", 1), ("ffffffff", layout.MEMBER_MAX), ("0badcafe", 77)):
        assert layout.split_id(layout.line_id(tag, member)) == (tag, member)
    made = layout.Keys("p")
    line = layout.line_id("0badcafe", 77)
    assert made.rows(line) == b"p:{0badcafe}:r:77"
    assert key_slot(made.rows(line)) == key_slot(made.family("0badcafe"))
    # As the specification of clusters has it.
    assert key_slot(b"123456789") == 0x31C3
    assert key_slot(b"x{123456789}y") == 0x31C3


@pytest.mark.parametrize(
    ("config", "info", "level"),
    [
        ({"appendonly": "yes", "appendfsync": "always", "save": ""}, {}, FULL),
        ({"appendonly": "yes", "appendfsync": "everysec", "save": ""}, {}, SECOND),
        ({"appendonly": "yes", "appendfsync": "no", "save": ""}, {}, PROCESS),
        ({"appendonly": "no", "save": "3600 1"}, {"aof_enabled": "0"}, SNAPSHOT),
        ({"appendonly": "no", "save": ""}, {}, NOTHING),
        (None, {"aof_enabled": "1"}, UNKNOWN),
        (None, {"aof_enabled": "0"}, SNAPSHOT),
        (None, {}, UNKNOWN),
    ],
)
def test_what_a_server_promises(config: dict[str, str] | None, info: dict[str, str], level: str) -> None:
    found = read_durability(config, info)
    assert found.level == level
    assert found.ok == (level == FULL)
    assert bool(found.advice) == (level != FULL)
    assert str(found)


def test_eviction_and_replicas_are_told() -> None:
    config = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "allkeys-lru"}
    found = read_durability(config, {"maxmemory": "1000", "connected_slaves": "2"})
    assert found.level == FULL
    assert not found.ok
    assert "allkeys-lru" in str(found)
    assert "noeviction" in found.advice
    assert "2 replicas" in str(found)
    weaker = read_durability({"appendonly": "no", "save": ""}, {})
    assert server_info.worst([found, weaker]).level == NOTHING


def test_without_redis_py_opening_says_what_to_install() -> None:
    code = """if True:
        import sys
        sys.modules["redis"] = None
        import everthread
        try:
            everthread.open("valkey://localhost")
        except everthread.MissingDependencyError as error:
            print(error)
    """
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "needs redis" in told
    assert "valkey" in told
