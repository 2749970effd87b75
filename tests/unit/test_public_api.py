"""The public names. A change here is a change for every user, and stands in the changelog."""

from __future__ import annotations

import inspect
import pydoc
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
import everthread.errors

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"

NAMES = """
    ABSENT Affected AgentSession AsyncAgentSession AsyncEventStream AsyncStore AsyncThread
    AsyncWorkingState BackupReport Briefing CheckpointManager Checkpointable Config Conflict Constraint
    ContextItem CoolReport Corrupt Damage Diff Done Erased ErasureReport Event EventStream ExportReport
    GcReport Hit Hits ImportReport Intention KeyNeeds Keyring KeyringBackup KeyringRestored LegalHold Limits
    Merge Opaque OpenLoop Passage PendingDecision Personal Pin Place Priority RecordedStep Recovered
    RedactionReport RestoreReport ResumeReport Retention RunToken SalvageReport SalvagedThread
    SessionRecords SignedHead StandingOrder StateStatus StorageBackend Store StoreStats Task Thread ThreadInfo
    Todo TodoStatus Usage UserStore VerifyReport Version WorkingState __version__ checkpoint derive open
    open_async open_keyring register register_document_migration register_migration reveal salvage
""".split()

ERRORS = """
    EffectMismatchError EffectsDeniedError InDoubtError MaxTurnsError ResultNotStoredError SessionBusyError
    ToolVetoError SessionFencedError AccessError ConflictError DamageError EventsTrimmedError EverthreadError
    FencedError InvalidNameError InvalidStateError InvalidValueError KeyReusedError KeyringError LimitError
    MergeConflictError MessageNotFoundError MissingDependencyError NotAStoreError NotFoundError RetryError
    SchemaVersionError SealError StateCorruptedError StateNotFoundError StorageWriteError StoreBusyError
    StoreClosedError StoreUnavailableError ThreadDeletedError ThreadExistsError ThreadNotFoundError
    UnavailableError UnsupportedError UsageError ValidationError VersionNotFoundError VersionPrunedError
    ErasedError LegalHoldError
""".split()

MEMBERS = {
    "Store": """accept_loss
        backup briefing capabilities close constraints cool copy_to doubt doubts end_doubt erase
        erasure_reports events export gc
        hold holds import_from knowledge namespace redact refresh_documents release_hold restore resume
        rotate_keys scan search send session session_records stats thread threads url users verify""",
    "Thread": """at attach_schema attach_workspace commit contains delete diff dirty discard effects expire
        fork head history lock log logs merge messages name pin pins rebase recovered refresh rewind sign
        state step step_result steps unpin update watch uid""",
    "ErasureReport": """complete digest dry_run ended_us erasure from_plain held is_signed key_ids keyring
        master_rotated message needles noted_us places plain public_key residues sealed_bytes sealed_values
        signature stayed store summary survivors elsewhere unopened unreached user_values waiting""",
    "Version": "at at_us expires_at id key kind label metadata parent seq slot source step ttl_us",
    "RecordedStep": "attempt key result slot version",
    "Pin": "seq thread until until_us version_id",
    "GcReport": """bytes companions dry_run events expired expired_count others pins problems size_after
        size_before subjects threads versions""",
    "ExportReport": "bytes events keys needs path sealed skipped streams threads versions",
    "Place": "beside excerpt first last log path position redactable stream thread what",
    "RedactionReport": "dry_run events id left left_count threads unreached values versions",
    "ImportReport": "events keys keys_missing present renamed sealed skipped streams threads versions",
    "StoreStats": "beside by_age bytes count deleted kinds others pruned threads totals versions",
    "ThreadInfo": "damaged label metadata name seq updated_at updated_at_us version_id",
    "Diff": "added apply between changed files logs ops plain removed summary",
    "Merge": "conflicts effects version",
    "Conflict": "base ours path theirs where",
    "Checkpointable": "clone diff load_state_dict state_dict",
    "CheckpointManager": "close diff history list_keys load rollback_context save",
    "ResumeReport": """blocked constraints contradicted crashed decisions facts fresh goal heard_us in_doubt
        in_flight in_progress losses made_us open_loops plain problems ready run stale status summary thread
        todos turns unverifiable version""",
    "WorkingState": """add_constraint add_open_loop add_todo apply at cancel_todo close closed complete_todo
        constraints context discard fork get_context get_intention get_todo history id intentions load
        mark_verified merge on open_loops past read_only reload remove_constraint remove_context remove_todo
        reopen_todo resolve_open_loop resume rewind save set_context set_intention snapshot start_todo status
        thread todos update_todo updated_at version""",
    "AgentSession": """accept_loss add_usage agent briefing call cancel checkpoint clear_working close
        complete decide effects errors exit_reason exit_snapshot fail fence fork found
        get_checkpoint get_working heartbeat in_doubt incomplete_decisions leave
        list_checkpoints log max_turns merge_update messages next_input receive record_error
        record_handling record_outcome restore resumed rewind rewind_to_checkpoint run run_id
        sandbox_id sandbox_ready save scratch session_id set_working settle slice state
        status tasks thread turn turns turns_left usage user_id version wait_for_change
        wait_for_input work""",
    "SessionRecords": """again checkpoints decided_count decisions effect effect_count effects
        error_count errors get_checkpoint head heartbeat_us holder holder_alive last_run losses name
        open_decisions open_effects runs slice status tasks thread turn_usage turns usage user_id
        version wait_for_change""",
    "UserStore": "close delete_user expire export_user get keys remove set sweep",
    "Personal": "from_sealed from_sources sealed subjects value",
    "Erased": "sealed value",
    "Corrupt": "reason",
    "Recovered": "first last reasons version",
    "VerifyReport": "companions damage needs ok redacted threads unfinished versions",
    "RestoreReport": "doubtful erased needs since",
    "BackupReport": "needs path",
    "KeyNeeds": "advice complete keyring keys missing problem to_take_along unopened values",
    "KeyringBackup": "destroyed keyring keys path",
    "KeyringRestored": "destroyed held keyring keys path present refused",
    "Damage": "affected beside derived first last problem thread what",
    "Affected": "beside first last thread",
    "SalvageReport": "cells doubtful events events_lost kept lost ok problems remade sealed threads",
    "SalvagedThread": """beside incomplete items_lost kept lost name namespace open_ended reasons remade
        remade_as whole""",
    "Event": "agent at at_us data seq type",
    "EventStream": """append consumer delete extend group last name project projection replay retain
        retention trim watch""",
    "StandingOrder": "at at_us author id text",
    "LegalHold": "elsewhere key_id keys reason refused since since_us threads",
    "SignedHead": "from_json hash public_key seq signature thread to_json verify version_id",
}


def members(cls: type) -> set[str]:
    """Public attributes of instances: what the class holds, and what ``__init__`` sets."""
    found = {name for name in dir(cls) if not name.startswith("_")}
    return found | set(getattr(cls, "__struct_fields__", ()))


def test_the_door_shows_these_names() -> None:
    assert dir(everthread) == sorted([*NAMES, *ERRORS])


def test_every_name_can_be_had() -> None:
    for name in dir(everthread):
        assert getattr(everthread, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = everthread.nonsense


def test_all_errors_are_in_one_tree() -> None:
    own = {name: value for name, value in vars(everthread.errors).items() if inspect.isclass(value)}
    classes = {name for name, value in own.items() if value.__module__ == "everthread.errors"}
    assert classes == set(ERRORS) == set(everthread.errors.__all__)
    for name in ERRORS:
        assert issubclass(getattr(everthread, name), everthread.EverthreadError)
        # The tree at the top of the module is what people read.
        assert name in (everthread.errors.__doc__ or "")


@pytest.mark.parametrize("name", MEMBERS)
def test_the_members_of_public_types(name: str) -> None:
    # Attributes that __init__ sets can't be seen on the class.
    set_by_init = {
        "Thread": {"name"},
        "EventStream": {"name"},
        "SessionRecords": {"thread", "losses"},
        "AgentSession": set(
            """agent exit_snapshot found max_turns messages run_id sandbox_id scratch tasks user_id""".split()
        ),
    }
    assert members(getattr(everthread, name)) | set_by_init.get(name, set()) == set(MEMBERS[name].split())


@pytest.mark.parametrize("name", [name for name in dir(everthread) if name != "__version__"])
def test_every_name_is_documented(name: str) -> None:
    page = API_PAGE.read_text(encoding="utf-8")
    assert f"`{name}`" in page or f"`{name}(" in page


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_is_documented(name: str) -> None:
    page = API_PAGE.read_text(encoding="utf-8")
    assert not [member for member in MEMBERS[name].split() if f"`{member}" not in page]


def test_no_module_hides_a_public_name() -> None:
    """Importing ``everthread.salvage`` as a module would put it in the place of the function."""
    package = Path(everthread.__file__).parent
    modules = {path.stem for path in package.iterdir()}
    assert modules.isdisjoint(everthread.__all__)


def annotated(name: str) -> Iterator[tuple[str, Any]]:
    """A public name and, of a class, what users call or read of it."""
    value = getattr(everthread, name)
    if not callable(value):
        return
    yield name, value
    if not inspect.isclass(value):
        return
    for member, found in inspect.getmembers_static(value):
        if isinstance(found, property):
            found = found.fget
        found = inspect.unwrap(getattr(found, "__func__", found))
        if inspect.isfunction(found) and (not member.startswith("_") or member.startswith("__")):
            yield f"{name}.{member}", found


@pytest.mark.parametrize("name", sorted(everthread.__all__))
def test_the_types_of_every_public_name_can_be_asked_for(name: str) -> None:
    failed = []
    for where, value in annotated(name):
        try:
            typing.get_type_hints(value)
        except NameError as error:
            failed.append(f"{where}: {error}")
    assert not failed


def test_help_works() -> None:
    assert "ResumeReport" in pydoc.render_doc(everthread)
    for name in everthread.__all__:
        if name != "__version__":
            assert name in pydoc.render_doc(getattr(everthread, name), renderer=pydoc.plaintext)
