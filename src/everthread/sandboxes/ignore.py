"""Which files of a working folder aren't recorded: the rules that git follows, from ``.gitignore`` files.

Also from ``.everthreadignore``, for what git keeps and nobody wants recorded, from ``.git/info/exclude`` and
from the user's own ``git/ignore``. Rules alone decide: a file that git tracks although a rule names it is
left out.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from everthread.sandboxes.paths import bytes_text

#: Never recorded: repositories, which belong to git, and stores.
ALWAYS = frozenset({".git", ".everthread"})
_NAMES = (".gitignore", ".everthreadignore")
#: More than any such file has; the rest of a longer one isn't read.
_BYTES_MAX = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ALL_BELOW = "(?:.*/)?"


class Rules:
    """The rules of one file, for what lies in its folder."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        #: From the last to the first, because the last one that fits counts: what fits, whether it is to be
        #: recorded after all, whether it means folders only, and whether the name alone decides.
        self._rules: list[tuple[re.Pattern[str], bool, bool, bool]] = []
        for line in data.splitlines():
            rule = _rule(bytes_text(line))
            if rule is not None:
                self._rules.insert(0, rule)

    def decide(self, path: str, name: str, is_folder: bool) -> bool | None:
        """Whether a path from this folder on is left out; ``None`` if no rule says anything."""
        for pattern, is_kept, folders_only, by_name in self._rules:
            if (is_folder or not folders_only) and pattern.fullmatch(name if by_name else path):
                return not is_kept
        return None


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool, bool] | None:
    # The text of a path doubles backslashes; those of a rule are escapes of its own.
    line = line.replace("\\\\", "\\")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    is_kept = line.startswith("!")
    line = line[is_kept:]
    folders_only = line.endswith("/")
    line = line.rstrip("/") if folders_only else line
    by_name = "/" not in line
    line = line.removeprefix("/")
    if not line:
        return None
    try:
        return re.compile(_regex(line), re.DOTALL), is_kept, folders_only, by_name
    except re.error:
        # A rule that means nothing fits nothing.
        return None


def _regex(pattern: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            parts.append(_ALL_BELOW)
            at += 3
            continue
        if pattern[at:] == "**" and at and pattern[at - 1] == "/":
            parts.append(".+")
            break
        if char == "*":
            while pattern.startswith("*", at + 1):
                at += 1
            parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\")
            negated = inside[:1] in ("!", "^")
            parts.append(f"[{'^/' if negated else ''}{inside[negated:].replace('[', chr(92) + '[')}]")
            at = end
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append(re.escape(char))
        at += 1
    return "".join(parts)


#: The rules that hold in a folder, the nearest first, each with where its folder begins.
_Stack = tuple[tuple[int, Rules], ...]


class IgnoreRules:
    """The rules of a whole working folder. What was decided is remembered while they stay the same."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, Rules] = {}
        self._stacks: dict[str, _Stack] = {}
        self._decided: dict[str, tuple[_Stack, dict[str, bool]]] = {}
        self._outer: _Stack = ()
        self._here: dict[str, bool] = {}
        self._stack: _Stack = ()

    def begin(self) -> None:
        """Before a walk: read the rules that stand outside of the folder."""
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        places = (os.path.join(self._root, ".git", "info", "exclude"), os.path.join(home, "git", "ignore"))
        found = [(path, _read(path, None)) for path in places]
        self._outer = tuple((0, self._rules(path, data)) for path, data in found if data)
        self._stacks = {}

    def enter(self, prefix: str, fd: int) -> None:
        """A walk comes to a folder: ``prefix`` is its text with a slash, or nothing."""
        above = prefix[:-1].rpartition("/")[0]
        outer = self._stacks.get(f"{above}/" if above else "", self._outer) if prefix else self._outer
        stack = outer
        for name in _NAMES:
            data = _read(name, fd)
            if data:
                stack = ((len(prefix), self._rules(prefix + name, data)), *stack)
        self._stacks[prefix] = self._stack = stack
        known = self._decided.get(prefix)
        if known is None or known[0] != stack:
            known = self._decided[prefix] = (stack, {})
        self._here = known[1]

    def ignores(self, text: str, name: str, is_folder: bool) -> bool:
        """Whether something in the folder that was entered last is left out."""
        if name in ALWAYS:
            return True
        if not self._stack:
            return False
        key = f"{name}/" if is_folder else name
        found = self._here.get(key)
        if found is None:
            found = self._here[key] = self._decide(text, name, is_folder)
        return found

    def _decide(self, text: str, name: str, is_folder: bool) -> bool:
        base = text.rpartition("/")[2]
        for start, rules in self._stack:
            decided = rules.decide(text[start:], base, is_folder)
            if decided is not None:
                return decided
        return False

    def _rules(self, path: str, data: bytes) -> Rules:
        known = self._known.get(path)
        if known is None or known.data != data:
            known = self._known[path] = Rules(data)
        return known


def _read(name: str, fd: int | None) -> bytes:
    with suppress(OSError):
        file = os.open(name, _READ, dir_fd=fd)
        try:
            return os.read(file, _BYTES_MAX)
        finally:
            os.close(file)
    return b""
