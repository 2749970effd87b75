"""Keys that aren't here: every command that looks says how many values are closed, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everthread
from everthread.cli.errors import OK, UNOPENED
from tests.unit.cli.calling import here

PASSPHRASE = "correct horse battery"
VALUES, PEOPLE = 24, 3
BRING = "everthread keyring restore FILE brings them in here"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", PASSPHRASE)


@pytest.fixture(params=["sqlite", "file"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A store with sealed values, and where it is to be restored."""
    kind = request.param
    names = [
        f"sqlite:///{tmp_path}/{name}.db" if kind == "sqlite" else f"file://{tmp_path}/{name}"
        for name in "ab"
    ]
    seal(names[0])
    return names


def seal(url: str) -> None:
    with everthread.open(url) as store:
        thread = store.thread("bot")
        for number in range(VALUES):
            thread.state[f"value {number}"] = everthread.Personal(f"person {number % PEOPLE}", number)
        thread.commit()


def values(url: str) -> list[int]:
    with everthread.open(url) as store:
        return [value.value for value in store.thread("bot").state.values()]


def test_copies_name_the_keyring_and_the_keys_that_they_need(urls: list[str], tmp_path: Path) -> None:
    keyring = str(Path.home() / ".everthread" / "keyring")
    told = here("backup", str(tmp_path / "copy"), "--store", urls[0])
    for words in (f"{VALUES} sealed values", f"{PEOPLE} keys", keyring, "everthread keyring backup FILE"):
        assert words in told.err
    told = here("export", str(tmp_path / "archive"), "--store", urls[0])
    for words in (f"{VALUES} sealed values", f"{PEOPLE} keys", keyring, "everthread keyring backup FILE"):
        assert words in told.out
    needs = here("backup", str(tmp_path / "again"), "--store", urls[0], "--json").data["needs"]
    assert (needs["keyring"], needs["values"], needs["keys"], needs["missing"]) == (
        keyring,
        VALUES,
        PEOPLE,
        0,
    )
    with everthread.open(urls[0]) as store:
        assert store.backup(tmp_path / "third").needs.keys == PEOPLE
        assert store.export(tmp_path / "fourth").needs.keys == PEOPLE
        # What travels with its keys needs nothing else.
        whole = store.export(tmp_path / "fifth", keys=PASSPHRASE)
        assert "keyring backup" not in str(whole)
        assert whole.keys == whole.needs.keys == PEOPLE


def test_no_command_speaks_of_keys_where_there_is_nothing_to_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plain.db"
    with everthread.open(url) as store:
        store.thread("bot").commit(label="first")
    assert here("backup", str(tmp_path / "copy"), "--store", url).err == ""
    for command in ("status", "verify", "doctor"):
        told = here(command, "--store", url)
        assert "sealed" not in told.out + told.err
    here("keyring", "status", "--store", url, code=3)
    assert not (Path.home() / ".everthread").exists()


def test_restored_on_an_empty_home_every_command_that_looks_says_so_until_the_keys_are_brought(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, keys = str(tmp_path / "copy"), str(tmp_path / "keys.backup")
    here("backup", copy, "--store", urls[0])
    assert f"{PEOPLE} keys" in here("keyring", "backup", keys, "--store", urls[0]).out
    assert Path(keys).stat().st_mode & 0o777 == 0o600

    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    closed = f"{VALUES} of {VALUES} sealed values can't be opened: {PEOPLE} keys that they need aren't in"
    calls = [
        ["restore", copy],
        ["status"],
        ["verify"],
        ["doctor"],
        ["doctor", "--quick"],
        ["keyring", "status"],
    ]
    for call in calls:
        told = here(*call, "--store", urls[1], code=UNOPENED)
        assert closed in told.out + told.err, call
        assert (told.out + told.err).count(closed) == 1, call
        assert BRING in told.out + told.err, call
    assert not (tmp_path / "elsewhere" / ".everthread").exists(), "looking makes no keyring"
    with everthread.open(urls[1]) as store:
        needs = store.verify().needs
        assert (needs.unopened, needs.missing, bool(needs), store.verify().ok) == (
            VALUES,
            PEOPLE,
            False,
            True,
        )
    assert here("status", "--store", urls[1], "--json", code=UNOPENED).data["unopened"] == VALUES

    told = here("keyring", "restore", keys, "--store", urls[1])
    assert f"{PEOPLE} keys brought into" in told.out
    for call in calls:
        told = here(*call, "--store", urls[1], *(["--yes"] if call[0] == "restore" else []))
        assert "can't be opened" not in told.out + told.err, call
    assert values(urls[1]) == list(range(VALUES))
    # Doing it again does no harm.
    assert f"0 keys brought into {tmp_path}" in here("keyring", "restore", keys, "--store", urls[1]).out


@pytest.mark.parametrize("server", ["postgres_url", "valkey_lasting_url"])
def test_a_server_tells_what_cannot_be_opened_here(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(server)
    seal(url)
    keys = str(tmp_path / "keys.backup")
    here("keyring", "backup", keys, "--store", url)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("status", "verify"):
        told = here(command, "--store", url, code=UNOPENED)
        assert f"{VALUES} of {VALUES} sealed values" in told.out + told.err
    here("keyring", "restore", keys, "--store", url)
    assert here("status", "--store", url).code == OK
    assert values(url) == list(range(VALUES))


def test_some_keys_that_are_missing_are_told_from_those_that_are_here(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with everthread.open(urls[0]) as store:
        thread = store.thread("mine")
        thread.state["a"] = everthread.Personal("person 0", "another key of the same name")
        thread.state["b"] = everthread.Personal("somebody", "else")
        thread.commit()
        needs = store.verify().needs
    assert (needs.values, needs.unopened, needs.keys, needs.missing) == (
        VALUES + 2,
        VALUES,
        PEOPLE + 2,
        PEOPLE,
    )


def test_who_was_erased_is_not_missing(urls: list[str]) -> None:
    with everthread.open(urls[0]) as store:
        store.core.vault.keyring.destroy("person 0")
        needs = store.verify().needs
        assert (needs.unopened, needs.keys, needs.values) == (0, PEOPLE - 1, VALUES - VALUES // PEOPLE)
        store.erase("person 1")
        assert store.verify().needs.keys == PEOPLE - 2
    assert here("verify", "--store", urls[0]).code == OK


def test_status_looks_at_a_thousand_values_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    with everthread.open(url) as store:
        thread = store.thread("bot")
        for number in range(1_100):
            thread.messages.append({"content": everthread.Personal("ann", number)})
        thread.commit()
    monkeypatch.setenv("HOME", str(tmp_path))
    told = here("status", "--store", url, code=UNOPENED)
    assert "at least 1,000 of 1,000 sealed values can't be opened" in told.err
    assert "1,100 of 1,100 sealed values" in here("verify", "--store", url, code=UNOPENED).out


def test_a_keyring_whose_master_key_is_lost_says_so_and_ends_with_the_same_code(urls: list[str]) -> None:
    (Path.home() / ".everthread" / "keyring" / "master.key").unlink()
    for command in (["status"], ["verify"], ["doctor"], ["keyring", "status"]):
        told = here(*command, "--store", urls[0], code=UNOPENED)
        assert f"{VALUES} of {VALUES} sealed values can't be opened" in told.out + told.err
        assert "put it back from its copy" in told.out + told.err


def test_erased_people_stay_away_from_a_restored_keyring(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old backup of the keyring, the store as it is now: its ledger knows who was erased since."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    here("keyring", "backup", old, "--store", urls[0])
    with everthread.open(urls[0]) as store:
        (erased,) = store.core.vault.keyring.key_ids("person 0")
        assert store.erase("person 0")
    here("keyring", "backup", new, "--store", urls[0])
    monkeypatch.setenv("HOME", str(tmp_path))
    told = here("keyring", "restore", old, "--store", urls[0])
    assert f"{PEOPLE - 1} keys brought into" in told.out
    assert "1 left out: they belong to persons who were erased" in told.out
    with everthread.open_keyring() as keyring:
        assert keyring.key(erased) is None
        assert keyring.is_destroyed(erased)

    # Without that store nobody knows; the newer backup does, and asks before it destroys what is alive.
    monkeypatch.setenv("HOME", str(tmp_path / "third"))
    nowhere = ["--keyring", str(tmp_path / "third"), "--json"]
    assert here("keyring", "restore", old, *nowhere).data["report"]["keys"] == PEOPLE
    here("keyring", "restore", new, *nowhere, code=2)
    with everthread.open_keyring(tmp_path / "third") as keyring:
        assert keyring.key(erased) is not None
    report = here("keyring", "restore", new, *nowhere, "--yes").data["report"]
    assert (report["keys"], report["present"], report["destroyed"]) == (0, PEOPLE - 1, 1)
    assert here("keyring", "restore", old, *nowhere).data["report"]["refused"] == 1
    with everthread.open_keyring(tmp_path / "third") as keyring:
        assert keyring.key(erased) is None


def test_a_keyring_backup_asks_for_a_passphrase_that_no_list_of_processes_shows(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.backup"
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "short")
    assert "must have at least 12 characters" in here("keyring", "backup", str(file), code=2).err
    monkeypatch.delenv("EVERTHREAD_ARCHIVE_PASSPHRASE")
    assert "--passphrase-file" in here("keyring", "backup", str(file), code=2).err
    assert not file.exists()
    (tmp_path / "secret").write_text(f"{PASSPHRASE}\n")
    with_file = ["--passphrase-file", str(tmp_path / "secret")]
    here("keyring", "backup", str(file), *with_file)
    assert "never overwrites" in here("keyring", "backup", str(file), *with_file, code=2).err
    (tmp_path / "secret").write_text("some other passphrase\n")
    told = here("keyring", "restore", str(file), *with_file, code=1)
    assert "don't open with this passphrase" in told.err
    assert here("keyring", "restore", str(tmp_path / "none"), *with_file, code=3).err


def test_a_backup_of_no_keyring_is_refused(tmp_path: Path) -> None:
    told = here("keyring", "backup", str(tmp_path / "keys"), code=3)
    assert "there is no keyring at" in told.err
    assert "--keyring" in told.err
    assert not (tmp_path / "keys").exists()


def test_the_environment_names_keyring_and_namespace_for_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    monkeypatch.setenv("EVERTHREAD_KEYRING", str(tmp_path / "keys"))
    monkeypatch.setenv("EVERTHREAD_NAMESPACE", "tenant")
    seal(url)
    assert not (Path.home() / ".everthread").exists()
    found = here("keyring", "status", "--store", url, "--json").data
    assert (found["keyring"], found["keys"]) == (str(tmp_path / "keys"), PEOPLE)
    assert "bot" in here("status", "--store", url).out
    # An option wins.
    assert "no threads yet" in here("status", "--store", url, "--namespace", "").err
    here("verify", "--store", url, "--keyring", str(tmp_path / "other"), code=UNOPENED)


def test_a_keyring_knows_the_stores_that_use_it(tmp_path: Path) -> None:
    for keyring in (str(tmp_path / "keys"), f"sqlite:///{tmp_path}/keys.db"):
        name = "a" if keyring.startswith("/") else "b"
        urls = [f"sqlite:///{tmp_path}/{name}.db", f"file://{tmp_path}/{name}}}files"]
        for url in urls:
            for _ in range(2):
                with everthread.open(url, keyring=keyring) as store:
                    store.thread("plain").commit(label="nothing sealed")
                    thread = store.thread("bot")
                    thread.state["who"] = everthread.Personal("ann", "Ann")
                    thread.commit()
        with everthread.open(f"sqlite:///{tmp_path}/reads.db", keyring=keyring) as store:
            store.thread("plain").commit(label="nothing sealed")
        shown = [url.replace("}", "%7D") for url in urls]
        answer = here("keyring", "status", "--keyring", keyring, "--store", urls[0], "--json").out
        assert json.loads(answer)["stores"] == shown
        told = here("keyring", "status", "--keyring", keyring, "--store", urls[0]).out
        assert all(f"used by {url}\n" in told for url in shown)
        with everthread.open(urls[0], keyring=keyring) as store:
            store.erase("ann")
            store.rotate_keys()
        with everthread.open_keyring(keyring) as found:
            assert found.stores() == shown, "they outlive every rewriting of the keyring"
