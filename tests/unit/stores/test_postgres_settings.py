"""From a URL to settings: what is libpq's stays as it was written."""

from __future__ import annotations

import pytest

from everthread import InvalidValueError
from everthread.stores.postgres.rows import text_query, text_vector
from everthread.stores.postgres.settings import read_settings


@pytest.mark.parametrize(
    ("url", "conninfo"),
    [
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://h/d?schema=x", "postgresql://h/d"),
        ("postgresql://h/d?sslmode=require&schema=x", "postgresql://h/d?sslmode=require"),
        ("postgresql:///d?host=/run&pool_max=3&port=1", "postgresql:///d?host=/run&port=1"),
        # Whatever it is, it isn't ours: libpq will say.
        ("postgresql://h/d?Schema=x&&=", "postgresql://h/d?Schema=x&&="),
        ("postgresql://u:p%40%2F@h1:1,h2:2/d%2Fe?options=-c%20a%3Db", None),
        ("postgresql://h/d?application_name=schema%3Dx", None),
    ],
)
def test_the_rest_goes_to_libpq_as_it_is(url: str, conninfo: str | None) -> None:
    assert read_settings(url, "full").conninfo == (url if conninfo is None else conninfo)


def test_options_of_ours() -> None:
    settings = read_settings(
        "postgresql://h/d?schema=agents&pool_max=3&pool_wait_ms=5&statement_timeout_ms=6&lock_timeout_ms=7"
        "&retry_ms=8&partitions=4&listen=postgresql%3A%2F%2Fdirect%2Fd",
        "process",
    )
    assert (settings.schema, settings.pool_max, settings.pool_wait_s) == ("agents", 3, 0.005)
    assert (settings.statement_timeout_ms, settings.lock_timeout_ms, settings.retry_s) == (6, 7, 0.008)
    assert (settings.partitions, settings.listen) == (4, "postgresql://direct/d")
    assert not settings.durable


@pytest.mark.parametrize(
    "option",
    [
        "schema=",
        "schema=A",
        "schema=a-b",
        "schema=a%22%3B%20drop",
        "schema=" + "a" * 64,
        "schema=1a",
        "pool_max=0",
        "pool_max=x",
        "pool_max=-1",
        "pool_max=1e3",
        "pool_max=9999999999",
        "retry_ms=%C2%B2",
        "partitions=99999",
    ],
)
def test_a_wrong_value_is_refused(option: str) -> None:
    with pytest.raises(InvalidValueError):
        read_settings(f"postgresql://h/d?{option}", "full")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@h:1/d?password=secret", "postgresql://h:1/d"),
        ("postgres://user:secret@h1,h2/d", "postgresql://h1,h2/d"),
        ("postgresql:///d?host=/run&password=secret", "postgresql:///d"),
        ("postgresql://h/d?schema=x&sslpassword=secret", "postgresql://h/d?schema=x"),
        ("postgresql://user:sec@ret@h/d", "postgresql://h/d"),
        ("postgresql://[secret", "postgresql://"),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    settings = read_settings(url, "full")
    assert settings.shown == shown
    assert "secret" not in settings.shown


def test_words_stay_whole() -> None:
    assert text_vector("a b a") == "'a':1,3 'b':2"
    assert text_vector("") == ""
    assert text_vector("it's \\x") == "'it''s':1 '\\\\x':2"
    assert text_query([["a"], ["b", "c'd"]]) == "('a') & ('b' <-> 'c''d')"
    long = text_vector(" ".join(f"w{n}" for n in range(100_000)))
    assert len(long) < 1_048_575
    assert text_vector("x" * 3_000 + " y") == "'y':2"
