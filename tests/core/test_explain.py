"""What is told of a request for a name: each outcome, and what is missing on each replica."""

from dataclasses import replace
from math import inf

import pytest

from gateway.core.adapters import Catalog, Rejected, RejectedState
from gateway.core.aliases import Alias, Arm
from gateway.core.explain import Explanation, Outcome, explain
from gateway.core.picker import pick
from gateway.core.registry import Registry
from gateway.core.replica import Failure, FailureKind, LoraSupport, Phase, Replica
from gateway.core.strikes import Quarantine
from tests.core.fleet import adapter, catalog, replica

NOW = 1000.0
SQL, NEW = adapter("sql", 1), adapter("sql", 2)


def registry(*replicas: Replica, adapters: Catalog | None = None) -> Registry:
    made = Registry()
    for record in replicas:
        made.join(Replica(record.id, record.url))
        made.publish(record, 0.0)
    made.replace_catalog(adapters or catalog(SQL), 0.0)
    return made


def holding(number: int, served_name: str = "sql") -> Replica:
    return replica(number, {served_name: SQL.load_path})


def failing(number: int, kind: FailureKind = FailureKind.REJECTED, reason: str = "no such module") -> Replica:
    retry_at = inf if kind is FailureKind.REJECTED else NOW + 8
    return replica(number).failing(SQL.revision, Failure(kind, reason, NOW - 1, retry_at, 3))


def told(fleet: Registry, model: str = "sql", limit: int = 0) -> Explanation:
    return explain(fleet, model, now=NOW, limit=limit)


def missing(explanation: Explanation) -> dict[str, str]:
    return {place.replica: place.missing for place in explanation.replicas}


def test_the_replica_that_is_picked_is_the_one_that_the_picker_picks() -> None:
    fleet = registry(holding(1), holding(2, "sql@000000000001"), replica(3))
    fleet.stations["r1:8000"].inflight = 2
    explanation = told(fleet)
    route = fleet.route("sql")
    assert route is not None
    seat = pick(route.seats, fleet.turn)
    assert seat is not None
    assert (explanation.outcome, explanation.picked) == (Outcome.ANSWERED, seat.station.replica.id)
    assert (explanation.stands_for, explanation.revision, explanation.base_model) == ("an adapter", SQL.digest, "base-a")
    answers = [(p.replica, p.answers, p.picked, p.served_name, p.inflight) for p in explanation.replicas]
    assert answers == [
        ("r1:8000", True, False, "sql", 2),
        ("r2:8000", True, True, "sql@000000000001", 0),
        ("r3:8000", False, False, None, 0),
    ]
    assert missing(explanation)["r3:8000"] == "not loaded yet"


def test_nothing_is_changed_by_being_explained() -> None:
    fleet = registry(holding(1))
    told(fleet)
    assert (fleet.turn, fleet.inflight, fleet.waiting, fleet.demand, fleet.last_used) == (0, 0, 0, {}, {})


def test_what_is_missing_is_told_for_each_replica() -> None:
    explanation = told(
        registry(
            replace(holding(1), phase=Phase.DOWN, reason="connection refused"),
            replace(holding(2), phase=Phase.DRAINING, reason="an operator drains it"),
            failing(3),
            failing(4, FailureKind.TIMEOUT, "no answer in 120 s"),
            replica(5).beginning(SQL.revision),
            replace(replica(6), lora=LoraSupport.UNSUPPORTED),
            replica(7, bases=("other",)),
            replica(8),
        )
    )
    assert missing(explanation) == {
        "r1:8000": "down: connection refused",
        "r2:8000": "draining: an operator drains it",
        "r3:8000": "rejected: no such module",
        "r4:8000": "the load failed (timeout, 3 times), tried again in 8 s: no answer in 120 s",
        "r5:8000": "is being loaded now",
        "r6:8000": "cannot load LoRA: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
        "r7:8000": "another base model: it serves other, the adapter is for base-a",
        "r8:8000": "not loaded yet",
    }
    assert explanation.outcome is Outcome.WAITS
    assert "the load that runs on r5:8000" in explanation.why


@pytest.mark.parametrize(
    ("replicas", "status", "code", "why"),
    [
        pytest.param([failing(1), failing(2)], 400, "adapter_rejected", "no such module", id="refused by all"),
        pytest.param([failing(1, FailureKind.ERROR, "HTML")], 502, "replica_failed", "r1:8000: HTML", id="failed on all"),
        pytest.param([replica(1, ready=False)], 503, "no_replica", "No replica is ready", id="none ready"),
        pytest.param(
            [replace(replica(1), lora=LoraSupport.UNSUPPORTED)], 503, "replica_misconfigured", "LoRA", id="no LoRA anywhere"
        ),
    ],
)
def test_it_is_refused_with_what_the_client_would_get(replicas: list[Replica], status: int, code: str, why: str) -> None:
    explanation = told(registry(*replicas))
    assert explanation.outcome is Outcome.REFUSED
    assert explanation.error is not None
    assert (explanation.error.status, explanation.error.code) == (status, code)
    assert why in explanation.why


def test_it_waits_for_a_load_for_room_and_for_a_replica_that_was_ready_a_moment_ago() -> None:
    assert "makes the load urgent" in told(registry(replica(1))).why
    busy = registry(holding(1))
    busy.stations["r1:8000"].inflight = 4
    explanation = told(busy, limit=4)
    assert (explanation.outcome, missing(explanation)) == (
        Outcome.WAITS,
        {"r1:8000": "busy: 4 of at most 4 requests run there"},
    )
    busy.stations["r1:8000"].inflight, busy.stations["r1:8000"].queued = 3, 2
    assert missing(told(busy, limit=4)) == {"r1:8000": "2 requests wait for room there"}
    gone = registry(holding(1))
    gone.publish(replace(holding(1), phase=Phase.DOWN), NOW - 59)
    assert told(gone).outcome is Outcome.WAITS
    assert explain(gone, "sql", now=NOW + 2).outcome is Outcome.REFUSED


def test_what_a_name_stands_for() -> None:
    fleet = registry(
        replica(1, {"sql": SQL.load_path, "sql@000000000002": NEW.load_path, "static": "/elsewhere"}),
        adapters=Catalog({"sql": NEW}, aliases={"canary": Alias("canary", (Arm("sql", 90), Arm("nothing", 10)))}),
    )
    words = {
        "base-a": "a base model of the replicas",
        "": "a base model of the replicas",
        "sql": "an adapter",
        "sql@000000000002": "the current revision of the adapter sql",
        "sql@000000000001": "an older revision of the adapter sql",
        "static": "a static LoRA of the replicas",
        "canary": "an alias for sql (90), nothing (10)",
        "nothing": "nothing: no base model, adapter, static LoRA or alias has this name",
    }
    assert {name: told(fleet, name).stands_for for name in words} == words
    canary = told(fleet, "canary")
    assert (canary.outcome, [(arm.model, arm.outcome) for arm in canary.arms]) == (
        Outcome.ANSWERED,
        [("sql", Outcome.ANSWERED), ("nothing", Outcome.REFUSED)],
    )
    unknown = told(fleet, "sql@00000000000f").error
    assert unknown is not None
    assert (unknown.code, "no snapshot of it is stored" in unknown.message) == ("model_not_found", True)


def test_an_alias_that_leads_nowhere_is_refused_as_its_arms_are() -> None:
    nowhere = Alias("canary", (Arm("gone", 1), Arm("away", 1)))
    explanation = told(registry(replica(1), adapters=Catalog(aliases={"canary": nowhere})), "canary")
    assert (explanation.outcome, explanation.error and explanation.error.code) == (Outcome.REFUSED, "model_not_found")
    half = Rejected("half", "/adapters/half", RejectedState.INCOMPLETE, "no weights yet")
    waiting = Alias("canary", (Arm("gone", 1), Arm("half", 1)))
    fleet = registry(replica(1), adapters=Catalog({}, {"half": half}, aliases={"canary": waiting}))
    refused = told(fleet, "canary").error
    assert refused is not None
    assert refused.code == "adapter_incomplete"


def test_a_session_gets_the_arm_that_it_has_for_its_requests() -> None:
    both = Alias("canary", (Arm("sql", 50), Arm("chat", 50)))
    chat = adapter("chat", 3)
    catalog_now = Catalog({"sql": SQL, "chat": chat}, aliases={"canary": both})
    fleet = registry(replica(1, {"sql": SQL.load_path, "chat": chat.load_path}), adapters=catalog_now)
    sessions = [b"%d" % number for number in range(20)]
    arms = {session: both.ranked(session)[0] for session in sessions}
    assert set(arms.values()) == {"sql", "chat"}
    for session, arm in arms.items():
        explanation = explain(fleet, "canary", now=NOW, session=session)
        assert explanation.stands_for.endswith(f"; the arm of this session is {arm}")
        assert (explanation.model, explanation.replicas[0].served_name) == ("canary", arm)
    only_sql = registry(holding(1), adapters=catalog_now)  # the other arm is held nowhere
    assert {explain(only_sql, "canary", now=NOW, session=s).replicas[0].served_name for s in sessions} == {"sql"}


def test_before_the_first_looks_a_name_is_unknown_so_far_and_no_404() -> None:
    fleet = Registry()
    assert told(fleet).why == "The adapter directory has not been read yet."
    fleet.replace_catalog(Catalog(), 0.0)
    assert told(fleet).why == "No replica has told its models yet."


def test_a_folder_that_cannot_be_loaded_is_told_with_its_reason() -> None:
    bad = Rejected("bad", "/adapters/bad", RejectedState.INVALID, "r is 0")
    half = Rejected("half", "/adapters/half", RejectedState.INCOMPLETE, "no weights yet")
    fleet = registry(replica(1), adapters=Catalog({}, {"bad": bad, "half": half}))
    invalid, incomplete = told(fleet, "bad"), told(fleet, "half")
    assert (invalid.stands_for, invalid.error and invalid.error.status) == ("a folder whose files are invalid", 400)
    assert (incomplete.stands_for, incomplete.error and incomplete.error.status) == ("a folder whose files are incomplete", 503)
    assert "r is 0" in invalid.why


def test_in_quarantine_only_the_trial_request_is_answered_and_only_when_its_time_has_come() -> None:
    fleet = registry(holding(1))
    fleet.strikes.quarantined[SQL.revision] = Quarantine("it was running when r8 and r9 died", NOW + 60)
    early = told(fleet)
    assert (early.outcome, early.error and early.error.code) == (Outcome.REFUSED, "adapter_quarantined")
    assert "in 60 s the next request may try it" in early.notes[0]
    due = explain(fleet, "sql", now=NOW + 61)
    assert (due.outcome, due.picked) == (Outcome.ANSWERED, "r1:8000")
    assert "the next request is its trial" in due.notes[0]
    assert fleet.strikes.begin_trial(SQL.revision, NOW + 61)
    assert explain(fleet, "sql", now=NOW + 61).notes == ("a trial request with it is running",)


def test_an_old_revision_that_goes_on_serving_and_a_pin_are_noted() -> None:
    refusing = holding(1).failing(NEW.revision, Failure(FailureKind.REJECTED, "rank too large", NOW, inf))
    serving = Catalog({"sql": NEW}, shelf={SQL.revision: SQL}, formers={"sql": (SQL.revision,)}, pins={"sql": NEW.digest})
    explanation = told(registry(refusing, adapters=serving))
    assert (explanation.outcome, explanation.revision) == (Outcome.ANSWERED, SQL.digest)
    assert explanation.notes[0].startswith(f"pinned on {NEW.digest}")
    assert explanation.notes[1] == f"every replica refuses the revision {NEW.digest}; {SQL.digest} goes on serving"


def test_lost_files_and_several_bases_are_told() -> None:
    fleet = registry(holding(1))
    fleet.lose(SQL.revision, "its files changed")
    assert (told(fleet).outcome, missing(told(fleet))) == (Outcome.REFUSED, {"r1:8000": "its files changed"})
    lost = told(fleet).error
    assert lost is not None
    assert (lost.status, lost.code) == (503, "adapter_incomplete"), "it heals: 400 would be for ever"
    two = registry(replica(1, bases=("x",)), replica(2, bases=("y",)))
    assert told(two).stands_for == "an adapter that does not fit the replicas"
    several = told(two, "").error
    assert several is not None
    assert several.code == "invalid_request"
