"""What Everthread uses of DBOS that isn't public: here it shows, by name, when a release lacks it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import everthread.engines.dbos.execution as used
from everthread import UsageError

SOURCE = Path(used.__file__).parent
PRIVATE = {
    "get_local_dbos_context": "dbos._context",
    "DBOSContext.owner_xid": "dbos._context",
    "_get_dbos_instance": "dbos._dbos",
    "DBOS._sys_db": "dbos._dbos",
    "SystemDatabase.get_workflow_owner": "dbos._sys_db",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_of_dbos_is_there(name: str) -> None:
    found: Any = importlib.import_module(PRIVATE[name])
    owner, _, attribute = name.rpartition(".")
    for part in filter(None, owner.split(".")):
        found = getattr(found, part)
    # The token is an attribute of each context, not of the class.
    found = found() if attribute == "owner_xid" else found
    assert hasattr(found, attribute), (
        f"DBOS has no {PRIVATE[name]}.{name} any more: see engines/dbos/execution.py"
    )


def test_no_other_private_name_of_dbos_is_used() -> None:
    """Every module of a leading underscore that is imported, wherever in the package."""
    imports = [
        (path.name, *found)
        for path in sorted(SOURCE.glob("*.py"))
        for found in re.findall(r"from (dbos\._\w+) import (\w+)", path.read_text(encoding="utf-8"))
    ]
    assert imports == [
        ("execution.py", "dbos._context", "get_local_dbos_context"),
        ("execution.py", "dbos._dbos", "_get_dbos_instance"),
    ]


@pytest.mark.parametrize("missing", ["owner_xid", "get_workflow_owner"])
def test_a_release_without_one_of_them_is_refused_by_its_name(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking:
        owner_xid = "token"

        def get_workflow_owner(self, workflow: str) -> str:
            return "token"

    monkeypatch.delattr(Lacking, missing)
    lacking = Lacking()
    monkeypatch.setattr(used, "get_local_dbos_context", lambda: lacking)
    monkeypatch.setattr(used, "_get_dbos_instance", type("Instance", (), {"_sys_db": lacking}))
    monkeypatch.setattr(used, "DBOS", type("Facade", (), {"workflow_id": "w", "step_id": 1}))
    with pytest.raises(UsageError, match=f"install 3.3 \\({missing} is missing"):
        used._owner(used._step()[0])
