"""Runs the tests that a framework's source release carries: as they are, and with our class substituted.

Each suite gets an environment of its own under a temporary folder, with Everthread of this tree and the
newest releases, and prints for each package what passed, failed, and was excluded, with the reason of each
exclusion. A package index must be within reach of pip.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tarfile
import tempfile
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = (Path(__file__).parent / "plugins", ROOT / "tests" / "adapters")


@dataclass(frozen=True)
class Suite:
    """The tests of one source release."""

    #: The package whose source release carries them.
    package: str
    #: The extra of Everthread, and what else the tests import.
    extra: str
    needs: tuple[str, ...]
    #: The module of ``plugins`` that puts our class in the place of theirs.
    plugin: str
    #: Which tests, within the source.
    paths: tuple[str, ...]
    #: A pattern of test names → why these can't be asked of another class.
    excluded: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def run(*suites: Suite) -> int:
    """Run what the command line asks for; 0 if nothing failed that isn't excluded, and nothing is excluded
    that isn't there."""
    packages = [suite.package for suite in suites]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=packages, action="append", help="a package; all by default")
    parser.add_argument("--verbose", action="store_true", help="print what pytest says of our class")
    options = parser.parse_args()
    sound = True
    with tempfile.TemporaryDirectory(prefix="everthread-suites-") as temporary:
        for suite in suites:
            if suite.package in (options.only or packages):
                sound = _one(suite, Path(temporary), verbose=options.verbose) and sound
    return 0 if sound else 1


def _one(suite: Suite, folder: Path, *, verbose: bool) -> bool:
    print(f"{suite.package}: setting up, then its tests twice; this takes minutes", flush=True)
    home = folder / suite.package
    python = _environment(suite, home)
    source = _source(suite.package, python, folder)
    stock = _results(suite, python, source, home, plugin=None)
    ours = _results(suite, python, source, home, plugin=suite.plugin, verbose=verbose)
    excluded: Counter[str] = Counter()
    failed: list[str] = []
    for name, outcome in ours.items():
        reason = next((why for pattern, why in suite.excluded.items() if re.search(pattern, name)), None)
        if reason is not None:
            excluded[reason] += 1
        elif outcome in ("failed", "error") and stock.get(name) == "passed":
            failed.append(name)
    # What fails in this environment with the framework's own class says nothing of ours.
    neither = [name for name, outcome in stock.items() if outcome in ("failed", "error")]
    unused = [pattern for pattern in suite.excluded if not any(re.search(pattern, name) for name in ours)]
    missing = set(stock) - set(ours)
    passed = sum(outcome == "passed" for outcome in ours.values())
    stock_passed = sum(outcome == "passed" for outcome in stock.values())
    print(
        f"{suite.package}: stock {stock_passed} passed, {len(neither)} failed; ours {passed} passed, ", end=""
    )
    print(f"{len(failed)} failed, {excluded.total()} excluded")
    for reason, count in excluded.most_common():
        print(f"  excluded {count}: {reason}")
    for title, names in (
        ("failed", failed),
        ("fails with the framework's own class too", neither),
        ("excluded, and not there", unused),
        ("not collected with ours", sorted(missing)),
    ):
        for name in names:
            print(f"  {title}: {name}")
    return not failed and not unused and not missing and stock_passed > 0


def _environment(suite: Suite, home: Path) -> str:
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{ROOT}[{suite.extra}]", suite.package, *suite.needs], check=True)
    return python


def _source(package: str, python: str, folder: Path) -> Path:
    """The unpacked source of the release that is installed."""
    told = [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    release = subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()
    pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), f"{package}=={release}"], check=True)
    name = f"{package.replace('-', '_')}-{release}"
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def _results(
    suite: Suite, python: str, source: Path, home: Path, *, plugin: str | None, verbose: bool = False
) -> dict[str, str]:
    """What became of each test."""
    report = home / f"{plugin or 'stock'}.xml"
    paths = [str(source), *(map(str, PLUGINS) if plugin else ())]
    environment = {
        **os.environ,
        **suite.environment,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--no-header"]
    command += ["--tb=short", f"--junitxml={report}", *suite.arguments, *suite.paths]
    command += ["-p", plugin] if plugin else []
    ran = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if not report.exists():
        raise SystemExit(f"{suite.package}: the tests can't be run\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}")
    if verbose:
        print(ran.stdout)
    return {
        f"{case.get('classname')}::{case.get('name')}": _outcome(case)
        for case in ElementTree.parse(report).iter("testcase")
    }


def _outcome(case: ElementTree.Element) -> str:
    for kind, outcome in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if case.find(kind) is not None:
            return outcome
    return "passed"
