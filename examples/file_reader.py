"""Reads a file store without Everthread, as docs/internals/file-format.md describes it.

    python examples/file_reader.py agent-state

prints every thread's newest document and messages as JSON. What JSON has no type for is left as it stands
there. Raises ValueError where a line doesn't fit its sum.
"""

from __future__ import annotations

import base64
import copy
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec

Logs = dict[str, list[int]]
_KINDS = ("commit", "rewind", "merge", "fork", "fence")
_EDITS = ("set", "delete", "splice", "add")
State = tuple[Any, Logs]


def lines_in(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, each checked; what is torn at its end never counted."""
    raw = path.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    found = []
    for number, line in enumerate(raw, 1):
        body, _, rest = line.rpartition(b',"sum":"')
        if rest == b'%08x"}\n' % zlib.crc32(body):
            found.append(json.loads(line))
        elif number < len(raw) or (line.endswith(b"\n") and b"\0\0" not in line):
            raise ValueError(f"{path}:{number} doesn't fit its sum")
    return found


def _unpacked(body: str) -> dict[str, Any]:
    """The members of a version that JSON can't give back: a framed record (docs/internals/format.md)."""
    unpack = msgspec.msgpack.decode
    head, change, blocks = unpack(base64.b64decode(body)[5:])
    (kind, *rest), (edits, *others) = unpack(head), unpack(change)
    found: dict[str, Any] = {
        "kind": _KINDS[kind],
        "document": [[_EDITS[code], *more] for code, *more in edits],
    }
    if len(rest) > 4 and rest[4] is not None:
        uid, seq, *_ = rest[4]
        found["source"] = {"line": uid.hex(), "seq": seq}
    waiting = iter(blocks)
    found["logs"] = []
    for log, at, remove, insert, position, *_ in others[0] if others else ():
        splice = {"log": log, "at": at, "remove": remove, "position": position, "insert": insert}
        if insert and blocks:
            splice["items"] = unpack(next(waiting))
        found["logs"].append(splice)
    return found


class Line:
    """One incarnation of a thread: its versions by seq, and the items that stand in its folder."""

    def __init__(self, entry: dict[str, Any], folder: Path) -> None:
        self.entry = entry
        self.parent = entry.get("parent")
        self.versions: dict[int, dict[str, Any]] = {}
        self.items: dict[str, dict[int, Any]] = {}
        self.sealed = False
        self.last = self.parent["seq"] if self.parent else 0
        following = min((path.name for path in folder.glob("journal-*.jsonl")), default="")
        while following:
            lines, following = lines_in(folder / following), ""
            for line in lines:
                following = line.get("continues", "")
                self.sealed = self.sealed or line.get("sealed", False)
                if "seq" in line:
                    self._take(line, folder)

    def _take(self, line: dict[str, Any], folder: Path) -> None:
        if "body" in line:
            line |= _unpacked(line["body"])
        self.last = line["seq"]
        for seq in range(line.get("first", self.last), self.last + 1):
            self.versions[seq] = line
        for splice in line.get("logs", ()):
            self._hold(splice["log"], splice.get("position", splice["at"]), splice.get("items") or [])
        if "apart" in line:
            name = line.get("items") or f"items-{self.last:010}-{line['hash'][:16]}.jsonl"
            for part in lines_in(folder / name):
                self._hold(part["log"], part["position"], part["items"])

    def _hold(self, log: str, position: int, items: list[Any]) -> None:
        self.items.setdefault(log, {}).update(enumerate(items, position))


class Store:
    """A folder, read once."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "everthread.json").read_bytes())
        if about["everthread"] != "everthread file store" or about["format"] > 1:
            raise ValueError(f"{folder} isn't a file store that this reader knows")
        content = folder / about["content"]
        self.lines: dict[int, Line] = {}
        self.threads: dict[str, Line] = {}
        for entry in lines_in(content / "lines.jsonl"):
            if "line" in entry:
                path = content / "threads" / entry["folder"]
                if path.is_dir():
                    self.lines[entry["line"]] = self.threads[entry["name"]] = Line(entry, path)
            elif "deleted" in entry:
                gone = self.lines.get(entry["deleted"])
                self.threads = {name: line for name, line in self.threads.items() if line is not gone}
        self.threads = {name: line for name, line in self.threads.items() if not line.sealed}
        self._uids = {line.entry["uid"]: line for line in self.lines.values()}

    def newest(self, name: str) -> tuple[Any, dict[str, list[Any]]]:
        """The document and the logs of a thread's newest version."""
        line = self.threads[name]
        return self.at(line, line.last)

    def at(self, line: Line, seq: int) -> tuple[Any, dict[str, list[Any]]]:
        document, logs = self._state(line, seq)
        return document, {
            log: [self._item(line, log, position) for position in positions]
            for log, positions in logs.items()
        }

    def _state(self, line: Line, seq: int) -> State:
        """Down to a state that is told, then up again."""
        owner, todo = line, []
        while True:
            parent = owner.parent
            if parent and seq <= parent["seq"]:
                owner = self.lines[parent["line"]]
                continue
            if seq == 0:
                state: State = ({}, {})
                break
            version = owner.versions[seq]
            if version["kind"] == "rewind":
                owner, seq = self._uids[version["source"]["line"]], version["source"]["seq"]
                continue
            if version["kind"] == "pruned" and "keyframe" in version:
                document, logs = version["keyframe"]["json"][:2]
                ranges = {
                    log: list(zip(edges[::2], edges[1::2], strict=True)) for log, (_, edges) in logs.items()
                }
                state = (document, {log: [p for a, b in r for p in range(a, b)] for log, r in ranges.items()})
                break
            if version["kind"] == "pruned" and "net" not in version:
                raise ValueError(f"version {seq} was pruned")
            todo.append(version)
            seq = version.get("first", seq) - 1
        state = copy.deepcopy(state)
        for version in reversed(todo):
            state = _advanced(state, version)
        return state

    def _item(self, line: Line, log: str, position: int) -> Any:
        while line.parent and position < line.entry.get("counts", {}).get(log, 0):
            line = self.lines[line.parent["line"]]
        return line.items[log][position]


def _advanced(state: State, version: dict[str, Any]) -> State:
    document, logs = state
    edits, splices = version.get("document", []), version.get("logs", [])
    if version["kind"] == "pruned":
        edits, packed = version["net"]["json"][:2]
        edits = [[_EDITS[code], *rest] for code, *rest in edits]
        names = ("log", "at", "remove", "insert", "position")
        splices = [dict(zip(names, splice, strict=False)) for splice in packed]
    for what, path, *rest in edits:
        document = _edited(document, what, path, rest)
    for splice in splices:
        at = splice["at"]
        count = len(splice["items"]) if splice.get("items") else splice.get("insert", 0)
        position = splice.get("position", at)
        log = logs.setdefault(splice["log"], [])
        log[at : at + splice.get("remove", 0)] = range(position, position + count)
    return document, logs


def _edited(document: Any, what: str, path: list[Any], rest: list[Any]) -> Any:
    if not path and what == "set":
        return copy.deepcopy(rest[0])
    node = document
    for key in path if what == "splice" else path[:-1]:
        node = node[key]
    if what == "splice":
        node[rest[0] : rest[0] + rest[1]] = copy.deepcopy(rest[2])
    elif what == "delete":
        node.pop(path[-1], None)
    elif what == "add":
        node[path[-1]] += rest[0]
    else:
        node[path[-1]] = copy.deepcopy(rest[0])
    return document


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    store = Store(Path(sys.argv[1]))
    print(json.dumps({name: store.newest(name) for name in sorted(store.threads)}, indent=2))
