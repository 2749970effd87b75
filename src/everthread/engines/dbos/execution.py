"""Which execution of which workflow this is, as DBOS says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dbos import DBOS
from dbos._context import get_local_dbos_context
from dbos._dbos import _get_dbos_instance

from everthread.engines.pointers import Execution
from everthread.errors import FencedError, UsageError

# The two imports above, the attribute ``owner_xid`` and ``_sys_db.get_workflow_owner()`` aren't public in
# DBOS, and nothing public says the same (3.3): neither the number of attempts nor the status names the
# execution that asks. ``tests/engines/test_dbos_names.py`` fails where one of them is gone.
_UNFIT = "this release of DBOS doesn't say which execution this is: install 3.3 ({} is missing)"

#: So many executions of this process are remembered.
_EXECUTIONS_MAX = 4096


async def execution() -> Execution:
    """Where this step runs. Raises :class:`UsageError` outside of a step, and :class:`FencedError` if DBOS
    has handed the workflow to somebody else."""
    workflow, token, number = _step()
    return _made(workflow, token, number, await asyncio.to_thread(_dispatch, workflow, token))


def blocking_execution() -> Execution:
    """The same in a blocking step."""
    workflow, token, number = _step()
    return _made(workflow, token, number, _dispatch(workflow, token))


def _step() -> tuple[str, str, int]:
    """The workflow, the token of this execution of it, and the number of the step."""
    workflow, number = DBOS.workflow_id, DBOS.step_id
    if workflow is None:
        raise UsageError("this belongs into a step of a DBOS workflow: no workflow runs here")
    if number is None:
        raise UsageError(
            "step() can't be used in the code of a workflow, which is replayed: use it in a step of DBOS, "
            "and return the ThreadRef that step.ref gives"
        )
    # The token is in this execution's hands alone. The row of the workflow may be another's by now: who reads
    # the number of attempts there may take his successor's for his own.
    token = getattr(get_local_dbos_context(), "owner_xid", None)
    if not isinstance(token, str):
        raise UsageError(_UNFIT.format("owner_xid"))
    return workflow, token, number


@dataclass(frozen=True)
class Dispatch:
    """What DBOS knows of an execution from when it handed it out."""

    started: float
    #: The workflow; if it was forked, the one at the beginning of it all.
    root: str
    forked_from: str
    #: The numbers of the steps that its history held.
    recorded: frozenset[int]


@lru_cache(_EXECUTIONS_MAX)
def _dispatch(workflow: str, token: str) -> Dispatch:
    """Read once: it holds for as long as the execution."""
    status = DBOS.get_workflow_status(workflow)
    if status is None:
        raise FencedError(f"the workflow {workflow!r} was deleted", attempt=0, newest=0)
    root, before = workflow, status.forked_from
    while before is not None:
        root, found = before, DBOS.get_workflow_status(before)
        before = None if found is None else found.forked_from
    steps = DBOS.list_workflow_steps(workflow, load_output=False)
    # Read last: if the token counts now, it did when the rest was read.
    if _owner(workflow) != token:
        raise FencedError(
            f"this execution of the workflow {workflow!r} must stop: it was cancelled or recovered elsewhere",
            attempt=0,
            newest=status.recovery_attempts or 0,
        )
    return Dispatch(
        (status.dequeued_at or status.created_at or 0) / 1000,
        root,
        status.forked_from or "",
        frozenset(step["function_id"] for step in steps),
    )


def _owner(workflow: str) -> Any:
    """The token of the execution that a workflow belongs to now."""
    look = getattr(getattr(_get_dbos_instance(), "_sys_db", None), "get_workflow_owner", None)
    if look is None:
        raise UsageError(_UNFIT.format("get_workflow_owner"))
    return look(workflow)


def _made(workflow: str, token: str, number: int, dispatch: Dispatch) -> Execution:
    return Execution(
        run=workflow,
        # DBOS ends an attempt before it begins the next, and counts anew in a recovery: the claim tells
        # executions apart.
        attempt=1,
        claim=f"{workflow}#{token}",
        orderly=True,
        started=dispatch.started,
        origin=dispatch.root,
        owner=dispatch.root,
        number=number,
        recorded=dispatch.recorded,
        forked_from=dispatch.forked_from,
    )
