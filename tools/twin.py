"""Generate the blocking twin of everything that is written once, async.

    python -m tools.twin            write the twins
    python -m tools.twin --check    fail if one isn't what its source generates

``async`` and ``await`` go, names change colour, and of every ``if ASYNC:`` the branch that fits is taken.
The other way round, the async form of the store contract is made of the blocking one, which drivers
implement.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "everthread"

#: Source → twin. A folder stands for all of its modules.
TWINS = {
    PACKAGE / part / "aio": PACKAGE / part / "sync"
    # Stores behind a network are listed here too.
    for part in (
        "threads",
        "events",
        "sessions",
        "subagents",
        "working",
        "engines",
        "stores/postgres",
        "stores/valkey",
        "adapters/langgraph",
    )
}
CONTRACT = PACKAGE / "stores" / "contract.py"
ASYNC_CONTRACT = PACKAGE / "stores" / "contract_async.py"
OFFLOADED = PACKAGE / "stores" / "offloaded.py"

#: The verbs that only read: they needn't wait for the writer. Nor does a purge, which may wait for readers.
READS = frozenset(
    "find line line_by_uid replay scan tail chunks fingerprints keyed sealed lines lines_by_tags untagged "
    "identity check backup cell cells events streams erasures erased sealed_under residues purge "
    "texts_covered text_keys find_texts".split()
)

HEADER = "# Generated from {source} by tools/twin.py: change that, then run: make twin\n"

#: How long a line may be, its end included.
LINE_MAX = 111

#: What the async contract has besides the verbs.
BESIDES = '''
    @property
    def blocking(self) -> Backend:
        """The driver beneath, for the one read that can't be awaited: the value of a personal item."""

    async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
        """What ``call(*args)`` returns, made on another thread: it takes long and needs no connection."""
'''

OFFLOADED_HEAD = '''"""The async contract on a blocking driver: each verb on a thread of the store's own."""

{imports}
from functools import partial
from itertools import islice
from everthread.stores.offload import Offload


class Offloaded(Offload):
    """Offers a blocking driver to async callers."""

    @property
    def capabilities(self) -> Capabilities:
        return self.blocking.capabilities

    @property
    def url(self) -> str:
        return self.blocking.url

    @property
    def signals(self) -> Signals:
        return self.blocking.signals

    async def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return await self.signals.wait_async(line, timeout_s, lambda: self.newer(line, seq))

    async def every_line(self) -> AsyncIterator[Line]:
        lines = self.blocking.every_line()
        while batch := await self._readers.run(lambda: list(islice(lines, 256))):
            for line in batch:
                yield line

    async def close(self) -> None:
        await self._close(self.blocking.close)

'''

#: Whole words, in order.
WORDS = (
    (r"\b(threads|events|sessions|subagents|working|engines)\.aio\b", r"\1.sync"),
    (r"\b(postgres|valkey|langgraph)\.aio\b", r"\1.sync"),
    (r"\bredis\.asyncio\b", "redis"),
    (r"stores\.contract_async\b", "stores.contract"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"pause_async\b", "pause"),
    (r"aside_async\b", "aside"),
    (r"StreamReads\b", "SequenceReads"),
    (r"\bstreamed\b", "iterated"),
    (r"AwaitedFace\b", "BlockingFace"),
    (r"StreamedFace\b", "IteratedFace"),
    (r"asynccontextmanager\b", "contextmanager"),
    (r"AbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
    (r"AsyncIterator\b", "Iterator"),
    (r"AsyncIterable\b", "Iterable"),
    (r"aclose\b", "close"),
    (r"fire_async\b", "fire"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
)


def branches(text: str) -> str:
    """Resolve ``if ASYNC:`` and ``if not ASYNC:`` for the blocking colour."""
    while True:
        lines = text.splitlines(keepends=True)
        found = next((node for node in ast.walk(ast.parse(text)) if _choice(node) is not None), None)
        if found is None:
            return text
        if isinstance(found, ast.IfExp):
            whole = ast.get_source_segment(text, found) or ""
            text = text.replace(whole, ast.get_source_segment(text, found.orelse) or "", 1)
            continue
        assert isinstance(found, ast.If)
        kept = _kept(found)
        body = lines[_first(kept[0]) - 1 : kept[-1].end_lineno] if kept else []
        shift = (kept[0].col_offset - found.col_offset) if kept else 0
        lines[found.lineno - 1 : found.end_lineno] = [line[shift:] if line.strip() else line for line in body]
        text = "".join(lines)


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(d.lineno for d in decorators)])
    return first


def _choice(node: ast.AST) -> bool | None:
    """Whether the first branch of an ``if`` on the colour is the async one; ``None`` for any other node."""
    if not isinstance(node, ast.If | ast.IfExp):
        return None
    test = node.test
    joined = isinstance(test, ast.BoolOp)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        test = test.values[0]
    if isinstance(test, ast.Name) and test.id == "ASYNC":
        return True
    if isinstance(test, ast.UnaryOp) and isinstance(test.operand, ast.Name) and test.operand.id == "ASYNC":
        if joined:
            # The rest of the condition would be lost: the branch would always be taken.
            raise SystemExit(f"line {test.lineno}: write the condition inside of `if not ASYNC:`")
        return False
    return None


def _kept(node: ast.If) -> list[ast.stmt]:
    return node.orelse if _choice(node) else node.body


def blocking(source: Path) -> str:
    """The twin of an async module."""
    text = branches(source.read_text(encoding="utf-8"))
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    if re.search(r"\bASYNC\b(?!,| |$)", text.replace("import ASYNC", "")):
        raise SystemExit(f"{source}: ASYNC is left in a place that the twin can't resolve")
    header = HEADER.format(source=source.relative_to(ROOT))
    if len(header) > LINE_MAX:
        header = HEADER.format(source=source.relative_to(PACKAGE))
    return header + text


def async_contract() -> str:
    """The store contract as async callers see it: the same verbs, awaited."""
    text = CONTRACT.read_text(encoding="utf-8")
    tree = ast.parse(text)
    backend = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Backend")
    lines = text.splitlines(keepends=True)
    # What the contract offers, its own and what it hands on.
    names = sorted(_defined(tree))
    for node in backend.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            at = node.lineno - 1
            whole = "".join(lines[at : node.body[0].lineno])
            if "Iterator[" not in whole:
                lines[at] = lines[at].replace("def ", "async def ", 1)
    body = "".join(lines[backend.lineno - 1 : backend.end_lineno])
    body = body.replace("class Backend(Protocol)", "class AsyncBackend(Protocol)")
    body = re.sub(r"\bIterator\[", "AsyncIterator[", body)
    body += BESIDES
    used = [name for name in names if re.search(rf"\b{name}\b", body)]
    return (
        HEADER.format(source=CONTRACT.relative_to(ROOT))
        + '"""The store contract as async callers see it."""\n\nfrom __future__ import annotations\n\n'
        + "from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence\n"
        + "from typing import Any, Protocol\n\n"
        + "from everthread.history.packs import Chunk\n"
        + f"from everthread.stores.contract import {', '.join(used)}\n"
        + "from everthread.stores.signals import Signals\n\n\n"
        + body
    )


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def offloaded() -> str:
    """The async contract on a blocking driver: each verb on a thread of the store's own."""
    tree = ast.parse(async_contract())
    backend = next(n for n in tree.body if isinstance(n, ast.ClassDef))
    verbs = []
    for node in backend.body:
        if not isinstance(node, ast.AsyncFunctionDef) or node.name in ("append", "aside", "close", "wait"):
            continue
        names = [arg.arg for arg in node.args.args[1:]]
        extra = [f"{arg.arg}={arg.arg}" for arg in node.args.kwonlyargs]
        call = f"self.blocking.{node.name}"
        if extra:
            call = f"partial({call}, {', '.join(extra)})"
        worker = "_readers" if node.name in READS else "_writer"
        node.body = [ast.Pass()]
        head = ast.unparse(node)
        head = head[: head.rindex("pass")].rstrip()
        verbs.append(f"{head}\n    return await self.{worker}.run({', '.join([call, *names])})")
    body = "\n\n".join("\n".join("    " + line for line in verb.splitlines()) for verb in verbs)
    imports = "\n".join(ast.unparse(n) for n in tree.body if isinstance(n, ast.ImportFrom))
    imports = imports.replace("from typing import Protocol\n", "")
    header = HEADER.format(source=CONTRACT.relative_to(ROOT))
    return header + OFFLOADED_HEAD.format(imports=imports) + body + "\n"


def generated() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    made = {ASYNC_CONTRACT: async_contract(), OFFLOADED: offloaded()}
    for source, twin in TWINS.items():
        for module in sorted(source.glob("*.py")):
            made[twin / module.name] = blocking(module)
    # ruff runs as a process of its own for each: several at a time.
    with ThreadPoolExecutor() as pool:
        return dict(zip(made, pool.map(formatted, made, made.values()), strict=True))


def formatted(path: Path, text: str) -> str:
    # What reads well with await may not without: the fixes that ruff calls unsafe put that right.
    for command in (["check", "--fix-only", "--unsafe-fixes", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a twin is out of date")
    options = parser.parse_args()
    made = generated()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    left = [p for twin in TWINS.values() for p in twin.glob("*.py") if p not in made]
    for path in (*stale, *left):
        print(f"{path.relative_to(ROOT)}: not what its source generates" if options.check else path)
    if options.check:
        sys.exit("Run: make twin" if stale or left else 0)
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path], "utf-8")
    for path in left:
        path.unlink()


if __name__ == "__main__":
    main()
