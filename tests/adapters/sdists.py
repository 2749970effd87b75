"""The source of an installed release, with its tests, fetched when a test needs it and kept nowhere else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest


def source_of(package: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source of the release of this package that is installed.

    Kept in pytest's cache folder between runs. Fails the test, saying what to do, if it can't be had.
    """
    release = version(package)
    cache = getattr(request.config, "cache", None)
    folder = Path(cache.mkdir("everthread-sdists")) if cache else tmp_path_factory.mktemp("sdists")
    unpacked = folder / f"{package.replace('-', '_')}-{release}"
    if (unpacked / "complete").exists():
        return unpacked
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", str(folder)]
    try:
        asked = subprocess.run(
            [*command, f"{package}=={release}"], capture_output=True, text=True, timeout=300
        )
        trouble = asked.stderr if asked.returncode else ""
    except subprocess.TimeoutExpired:
        trouble = "it took more than five minutes"
    archives = sorted(folder.glob(f"{package.replace('-', '_')}-{release}.tar.gz"))
    if trouble or not archives:
        pytest.fail(
            f"the source of {package} {release} can't be had, and with it the tests that it brings; "
            f"a package index must be within reach of pip:\n{trouble}"
        )
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    (unpacked / "complete").touch()
    return unpacked
