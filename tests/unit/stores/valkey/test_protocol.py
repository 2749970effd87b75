"""The protocol, URLs and what a server says about itself: without a server."""

from __future__ import annotations

import random

import pytest

from everthread import InvalidValueError
from everthread.stores.valkey import keys, lasting
from everthread.stores.valkey.aio.calls import slot_of
from everthread.stores.valkey.lasting import FULL, NOTHING, PROCESS, SECOND, SNAPSHOT, UNKNOWN, read_keeping
from everthread.stores.valkey.resp import MISSING, ProtocolError, Replies, ReplyError, write_command
from everthread.stores.valkey.settings import read_url


def test_commands_are_written_with_the_length_of_each_part() -> None:
    assert write_command(("SET", b"a\r\nb", 12)) == b"*3\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$2\r\n12\r\n"
    assert write_command(("é",)) == b"*1\r\n$2\r\n\xc3\xa9\r\n"


def test_replies_come_out_whole_however_they_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    whole = b"+OK\r\n:-5\r\n$-1\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n*0\r\n*-1\r\n"
    whole += b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n-ERR x\r\n*1\r\n*0\r\n"
    for _ in range(200):
        replies, found, at = Replies(), [], 0
        while at < len(whole):
            step = draw.randint(1, 9)
            replies.feed(whole[at : at + step])
            at += step
            while (reply := replies.next()) is not MISSING:
                found.append(reply)
        nested = found.pop()
        assert found == [b"OK", -5, None, b"", b"\r\n\r\n", [], None]
        assert nested[0] == 1
        assert nested[1][0] == b"a"
        assert isinstance(nested[1][1], ReplyError)
        assert (nested[1][1].code, nested[1][1].text) == ("ERR", "ERR x")
        assert nested[2] == [[]]
        assert replies.empty


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*1.5\r\n", b":\r\n", b"\x00\r\n"])
def test_what_isnt_the_protocol_is_refused(garbage: bytes) -> None:
    replies = Replies()
    replies.feed(garbage)
    with pytest.raises(ProtocolError):
        replies.next()


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
    made = keys.Keys("p")
    for name in ("{evil}", "*", "a:b", "\n", "x" * 1000, "'; redis.call('FLUSHALL')"):
        for key in (made.family(keys.name_tag("s", name)), made.space(name), made.stream(name, name)):
            assert key.isascii()
            assert len(key) < 60
            assert key.count(b"{") == key.count(b"}") == 1
    assert keys.digest("ab", "c") != keys.digest("a", "bc"), "each part comes with its length"


def test_a_line_number_leads_to_its_slot() -> None:
    for tag, member in (("00000000", 1), ("ffffffff", keys.MEMBER_MAX), ("0badcafe", 77)):
        assert keys.split_id(keys.line_id(tag, member)) == (tag, member)
    made = keys.Keys("p")
    line = keys.line_id("0badcafe", 77)
    assert made.rows(line) == b"p:{0badcafe}:r:77"
    assert slot_of(made.rows(line)) == slot_of(made.family("0badcafe"))
    # As the specification of clusters has it.
    assert slot_of(b"123456789") == 0x31C3
    assert slot_of(b"x{123456789}y") == 0x31C3


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
    found = read_keeping(config, info)
    assert found.level == level
    assert found.ok == (level == FULL)
    assert bool(found.advice) == (level != FULL)
    assert str(found)


def test_eviction_and_replicas_are_told() -> None:
    config = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "allkeys-lru"}
    found = read_keeping(config, {"maxmemory": "1000", "connected_slaves": "2"})
    assert found.level == FULL
    assert not found.ok
    assert "allkeys-lru" in str(found)
    assert "noeviction" in found.advice
    assert "2 replicas" in str(found)
    weaker = read_keeping({"appendonly": "no", "save": ""}, {})
    assert lasting.worst([found, weaker]).level == NOTHING
