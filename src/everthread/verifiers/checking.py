"""Recording what a verifier sees, and asking it again later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from everthread.errors import InvalidValueError
from everthread.values import Erased
from everthread.verifiers.deadlines import run_all
from everthread.verifiers.permissions import AllowCommands, Permissions, permissions
from everthread.verifiers.registry import find, name_of, unknown
from everthread.verifiers.specs import Spec, Stored, checked, make_spec
from everthread.verifiers.verdicts import Verdict, one_line, unverifiable

#: Seconds that one verifier, and all of a resume together, may take.
EACH_S = 5.0
TOTAL_S = 15.0


def capture(verify: Any, value: Any, *, timeout_s: float = EACH_S) -> dict[str, Any]:
    """What to store beside a fact so that it can be verified later: JSON-like data, no code.

    ``verify`` is a spec such as ``file_hash("a.txt")``, the name of a registered verifier, a function, or
    what an earlier call returned, which is kept as it is. The verifier looks at the world now. If it can't
    (the file isn't there, say), that is recorded, and reported as unverifiable later: keeping the fact
    matters more. Raises :class:`InvalidValueError` for anything else.
    """
    if isinstance(verify, Mapping):
        kept = Stored.from_data(verify)
        if kept is None:
            raise InvalidValueError("this is no stored verifier", path="verify")
        return kept.to_data()
    spec = _spec_of(verify)
    verifier = find(spec.name)
    if verifier is None:
        raise InvalidValueError(
            f"no verifier is called {spec.name!r}; register it first: verifiers.register(name, fn)",
            path="verify",
        )
    job = partial(verifier.capture, value, dict(spec.args))
    (outcome,) = run_all([job], each_s=timeout_s, total_s=timeout_s)
    if outcome.problem:
        return Stored(spec.name, spec.args, None, one_line(outcome.problem)).to_data()
    expected = checked(outcome.answer, f"what verifier {spec.name!r} captured")
    return Stored(spec.name, spec.args, expected).to_data()


def check(
    stored: Any,
    value: Any,
    *,
    allow_commands: AllowCommands = False,
    allow_network: bool = True,
    timeout_s: float = EACH_S,
) -> Verdict:
    """Ask the verifier of one fact. Never raises for what is stored, never waits longer than told."""
    allowed = permissions(allow_commands, allow_network)
    return check_all([(stored, value)], allowed, each_s=timeout_s, total_s=timeout_s)[0]


def check_all(
    facts: Sequence[tuple[Any, Any]],
    allowed: Permissions | None = None,
    *,
    each_s: float = EACH_S,
    total_s: float = TOTAL_S,
) -> list[Verdict]:
    """Ask the verifiers of many facts, each a pair of what :func:`capture` returned and the value."""
    allowed = allowed or Permissions()
    jobs = [_job(stored, value, allowed) for stored, value in facts]
    outcomes = run_all(jobs, each_s=each_s, total_s=total_s)
    return [outcome.answer or unverifiable(outcome.problem) for outcome in outcomes]


def _spec_of(verify: Any) -> Spec:
    if isinstance(verify, Spec):
        return verify
    if isinstance(verify, str):
        return make_spec(verify, {})
    if callable(verify):
        return make_spec(name_of(verify), {})
    raise InvalidValueError(
        f"verify is a verifier such as verifiers.file_hash(…), a registered name or a function, "
        f"not {type(verify).__name__}",
        path="verify",
    )


def _job(data: Any, value: Any, allowed: Permissions) -> Callable[[float], Verdict]:
    def answer(reason: str) -> Callable[[float], Verdict]:
        return lambda _: unverifiable(reason)

    stored = Stored.from_data(data)
    if stored is None:
        return answer("the stored verifier is not understood")
    if isinstance(value, Erased):
        return answer("the value was erased")
    if stored.problem:
        return answer(f"it could not be checked when it was recorded: {stored.problem}")
    verifier = find(stored.name)
    if verifier is None:
        return answer(unknown(stored.name))
    return partial(verifier.check, value, dict(stored.args), stored.expected, allowed)
