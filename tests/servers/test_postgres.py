"""The server that the other tests rely on."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.servers.postgres import PostgresServer


def test_the_shared_server_answers(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT current_setting('server_encoding')").fetchall() == [("UTF8",)]


def test_a_server_of_ones_own_comes_back_after_a_kill(own_server_folder: Path) -> None:
    server = PostgresServer(own_server_folder)
    server.create()
    server.start()
    try:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
        server.kill()
        server.start()
        with psycopg.connect(server.uri()) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]
    finally:
        server.stop()
