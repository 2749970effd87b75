"""Events in a file store, as a person reads them."""

from __future__ import annotations

import json
from pathlib import Path

import everthread


def test_events_in_a_file_store_are_readable_json_lines(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/store", keyring="memory:") as store:
        tasks = store.events("tasks")
        tasks.append("made", {"title": "pay the invoice", "$odd": (1, 2)}, agent="planner")
        tasks.append("sent", {"to": everthread.Personal("ann", "ann@example.org")})
        written = list(tasks)
        (file,) = (tmp_path / "store").rglob("tasks-*.jsonl")
        text = file.read_text(encoding="utf-8")
        header, first, second = map(json.loads, text.splitlines())
        assert header["stream"] == "tasks"
        (event,) = first["events"]
        assert (event["type"], event["agent"]) == ("made", "planner")
        assert event["data"]["framed"][0] == {"title": "pay the invoice", "$$odd": {"$tuple": [1, 2]}}
        assert "base64" not in text
        # What is personal stays sealed.
        assert list(second["events"][0]["data"]["framed"][0]["to"]) == ["$sealed"]
        assert "ann@" not in text
    with everthread.open(f"file://{tmp_path}/store", keyring="memory:") as store:
        assert [event.data for event in store.events("tasks").replay(type="made")] == [written[0].data]


def test_a_changed_event_of_a_file_store_is_damage(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/store") as store:
        store.events("tasks").append("made", {"title": "pay"})
    (file,) = (tmp_path / "store").rglob("tasks-*.jsonl")
    file.write_text(file.read_text(encoding="utf-8").replace("pay", "PAY"), encoding="utf-8")
    with everthread.open(f"file://{tmp_path}/store") as store:
        assert not store.verify().ok
