"""Rules that keep files of a working folder from being recorded: those of git, from ``.gitignore`` files.

Also from ``.everthreadignore`` files, for what git keeps and the versions of a folder shouldn't, from
``.git/info/exclude`` and from the user's own ``git/ignore``. Rules alone decide: a file that git tracks
although a rule names it is left out. What a rule matches is up to dulwich, which translates rules as git
reads them.
"""

from __future__ import annotations

import io
import os
import re

from everthread.sandboxes.disk import read_file
from everthread.sandboxes.paths import text_bytes

#: Never recorded: repositories, which belong to git, and stores.
ALWAYS = frozenset({".git", ".everthread"})
_NAMES = (".gitignore", ".everthreadignore")
#: More than any such file has; the rest of a longer one isn't read.
_BYTES_MAX = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# What dulwich translates "*" and "**/" to. Neither can come from anything else in a rule, since it escapes
# all characters that mean something in an expression.
_ANY = b"[^/]*"
_ANY_FOLDERS = b"(?:[^/]+/)*"


class Rules:
    """The rules of one file, for what lies in its folder."""

    def __init__(self, data: bytes) -> None:
        # Imported here: few folders are attached by the programs that import this package.
        from dulwich.ignore import read_ignore_patterns

        self.data = data
        #: From the last to the first, because the last one that matches counts: the expression, whether it
        #: names what is recorded after all, and whether it matches folders only.
        self._rules: list[tuple[re.Pattern[bytes], bool, bool]] = []
        for line in read_ignore_patterns(io.BytesIO(data.removeprefix(_BYTE_ORDER_MARK))):
            rule = _rule(line)
            if rule is not None:
                self._rules.insert(0, rule)

    def decide(self, path: bytes, is_folder: bool) -> bool | None:
        """Return whether a path from this folder on is left out; ``None`` if no rule matches it."""
        for pattern, is_kept, folders_only in self._rules:
            if (is_folder or not folders_only) and pattern.match(path):
                return not is_kept
        return None


def _rule(line: bytes) -> tuple[re.Pattern[bytes], bool, bool] | None:
    from dulwich.ignore import translate
    from dulwich.wildmatch import MalformedPattern

    is_kept = line.startswith(b"!")
    line = line[is_kept:]
    name = line.rstrip(b"/")
    escapes = len(name) - len(name.rstrip(b"\\"))
    if not name or escapes % 2:
        # Git takes a rule that ends in half an escape for one that matches nothing.
        return None
    try:
        return re.compile(_without_backtracking(translate(name))), is_kept, line.endswith(b"/")
    except (MalformedPattern, re.error):
        return None


def _without_backtracking(regex: bytes) -> bytes:
    """Return the expression of a rule such that wildcards don't multiply the time that a match takes.

    Each wildcard but the last takes as little as it can, and is never tried again: a later place for what
    follows it leaves less for the next wildcard, and so never matches where the first place doesn't.
    """
    first, *inner = regex.split(_ANY)
    for index, part in enumerate(inner, 1):
        # Only within one name: what is left of a slash can't reach what is right of it.
        atomic = index < len(inner) and b"/" not in part.replace(b"[^/", b"")
        first += b"(?>[^/]*?" + part + b")" if atomic else _ANY + part
    first, *inner = first.split(_ANY_FOLDERS)
    for index, part in enumerate(inner, 1):
        first += b"(?>(?:[^/]+/)*?" + part + b")" if index < len(inner) else _ANY_FOLDERS + part
    return first


#: The rules that hold in a folder, the nearest first, each with where its folder begins.
_Stack = tuple[tuple[int, Rules], ...]


class IgnoreRules:
    """The rules of a whole working folder. What was decided is remembered while they stay the same."""

    def __init__(self) -> None:
        self._known: dict[str, Rules] = {}
        self._stacks: dict[str, _Stack] = {}
        self._decided: dict[str, tuple[_Stack, dict[str, bool]]] = {}
        self._here: dict[str, bool] = {}
        self._stack: _Stack = ()

    def enter(self, prefix: str, fd: int) -> None:
        """Read the rules of a folder that a walk comes to. ``prefix`` is its text with a slash, or nothing
        for the outermost one, with which each walk begins."""
        if prefix:
            above = prefix[:-1].rpartition("/")[0]
            stack = self._stacks.get(f"{above}/" if above else "", ())
        else:
            self._stacks = {}
            stack = self._outer(fd)
        for name in _NAMES:
            data = read_file(name, fd, _BYTES_MAX)
            if data:
                stack = ((len(prefix), self._rules(prefix + name, data)), *stack)
        self._stacks[prefix] = self._stack = stack
        known = self._decided.get(prefix)
        if known is None or known[0] != stack:
            known = self._decided[prefix] = (stack, {})
        self._here = known[1]

    def _outer(self, fd: int) -> _Stack:
        """Return the rules that no folder holds: those of the repository, then those of the user."""
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        found = [(".git/info/exclude", _read_exclude(fd))]
        # Where the user's own rules are is the user's choice: they may be behind a link.
        found.append(("", read_file(os.path.realpath(os.path.join(home, "git", "ignore")), None, _BYTES_MAX)))
        return tuple((0, self._rules(path, data)) for path, data in found if data)

    def ignores(self, text: str, name: str, is_folder: bool) -> bool:
        """Return True if something in the folder that was entered last is left out."""
        if name in ALWAYS:
            return True
        if not self._stack:
            return False
        key = f"{name}/" if is_folder else name
        found = self._here.get(key)
        if found is None:
            found = self._here[key] = self._decide(text, is_folder)
        return found

    def _decide(self, text: str, is_folder: bool) -> bool:
        for start, rules in self._stack:
            decided = rules.decide(text_bytes(text[start:]), is_folder)
            if decided is not None:
                return decided
        return False

    def _rules(self, path: str, data: bytes) -> Rules:
        known = self._known.get(path)
        if known is None or known.data != data:
            known = self._known[path] = Rules(data)
        return known


def _read_exclude(fd: int) -> bytes:
    """Return what ``.git/info/exclude`` in an open folder says."""
    opened: list[int] = []
    try:
        for name in (".git", "info"):
            opened.append(os.open(name, _FOLDER, dir_fd=opened[-1] if opened else fd))
        return read_file("exclude", opened[-1], _BYTES_MAX)
    except OSError:
        return b""
    finally:
        for each in opened:
            os.close(each)
