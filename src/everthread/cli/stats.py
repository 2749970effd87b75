"""``everthread stats``: what threads take up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note, pad, progress, records

_LIMIT = 20
_NAME_WIDTH_MAX = 48
_COLUMNS = ("name", "bytes", "files", "versions", "pruned", "updated_at_us")


@click.command(epilog=example("stats", "stats --limit 100 --format tsv"))
@click.option(
    "--limit", default=_LIMIT, show_default=True, type=click.IntRange(1), help="How many threads at most."
)
@shared_options
@pass_invocation
def stats(call: Invocation, limit: int) -> None:
    """What the threads of this namespace take up: the largest first, then by kind and by the time since the
    last write. Reads no content; takes a moment per thread.
    """
    with call.store(settle=False) as store:
        with progress("measuring") as step:
            found = store.stats(limit=limit, progress=step)
        threads = [
            {"name": each.name, "bytes": each.bytes, "files": each.files, "versions": each.versions,
             "pruned": each.pruned, "updated_at_us": each.updated_at_us}
            for each in found.threads.values()
        ]  # fmt: skip
        data = {
            "store": store.url,
            "count": found.count,
            "others": dict(found.others),
            "versions": found.versions,
            "pruned": found.pruned,
            "bytes": found.bytes,
            "deleted": found.deleted,
            "beside": dict(found.beside),
            "kinds": dict(found.kinds),
            "by_age": dict(found.by_age),
            "threads": threads,
            "totals": msgspec.to_builtins(found.totals),
            "summary": str(found),
        }
        call.output.answer("stats", data, lambda: _show(data), records("threads", _COLUMNS))


def _show(data: Mapping[str, Any]) -> None:
    click.echo(clean(data["summary"]))
    for each in data["threads"]:
        name = pad(clean(each["name"], _NAME_WIDTH_MAX), _NAME_WIDTH_MAX)
        files = f"  {each['files']:,} of them files of its folder" if each["files"] else ""
        click.echo(f"  {name}  {each['bytes']:>14,} bytes  {each['versions']:>8,} versions{files}")
    if data["count"] > len(data["threads"]):
        note(f"… and {data['count'] - len(data['threads']):,} more (--limit)")
    parts = (("by kind", data["kinds"]), ("beside threads", data["beside"]), ("by age", data["by_age"]))
    for title, sizes in parts:
        told = ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)
        if told:
            click.echo(f"{title}: {told}")
