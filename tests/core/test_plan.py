"""Which loads and unloads, and under which served names."""

from dataclasses import replace

import pytest

from gateway.core.adapters import Home
from gateway.core.plan import Load, Unload, due, plan, served_name
from gateway.core.replica import Failure, FailureKind
from tests.core.fleet import adapter, replica

SQL = adapter("sql", 1)
SQL2 = adapter("sql", 2)
FOREVER = float("inf")


def test_an_adapter_that_was_never_there_gets_its_plain_name() -> None:
    assert plan([SQL], replica()).loads == (Load(SQL, "sql"),)


def test_a_new_revision_is_loaded_beside_the_old_one_under_its_full_name() -> None:
    holding = replica(held={"sql": SQL.load_path})
    assert plan([SQL2], holding).loads == (Load(SQL2, "sql@000000000002"),)


@pytest.mark.parametrize(
    ("used", "witnessed", "idle", "name"),
    [
        pytest.param(set(), True, False, "sql", id="fresh process"),
        pytest.param({"sql"}, True, False, "sql@000000000001", id="plain name was used"),
        pytest.param({"sql", "sql@000000000001"}, True, False, None, id="both were used"),
        pytest.param({"sql", "sql@000000000001"}, True, True, "sql@000000000001", id="both used but nothing runs"),
        pytest.param(set(), False, False, "sql@000000000001", id="process not watched from its start"),
        pytest.param(set(), False, True, "sql", id="not watched but nothing runs"),
    ],
)
def test_a_served_name_is_used_once_per_process(used: set[str], witnessed: bool, idle: bool, name: str | None) -> None:
    assert served_name(SQL, replica(), used, idle=idle, witnessed=witnessed) == name


def test_without_a_snapshot_the_name_must_tell_the_revision() -> None:
    own = adapter("sql", home=Home.OWN_PATH)
    assert served_name(own, replica(), ()) == "sql@000000000001"


def test_already_loaded_by_somebody_from_the_adapters_own_path_is_foreign_and_left_alone() -> None:
    foreign = replica(held={"sql": "/adapters/sql"})
    assert plan([SQL], foreign, retired={SQL.revision}).loads == (Load(SQL, "sql@000000000001"),)
    assert foreign.seen.static == ("sql",)


def test_already_loaded_revisions_are_not_loaded_again() -> None:
    assert plan([SQL], replica(held={"sql": SQL.load_path})).loads == ()
    assert plan([SQL], replica().beginning(SQL.revision)).loads == ()


def test_a_retired_revision_is_unloaded_only_when_no_request_of_ours_uses_it() -> None:
    holding = replica(held={"sql": SQL.load_path})
    assert plan([], holding, retired={SQL.revision}).unloads == (Unload(SQL.revision, "sql"),)
    assert plan([], holding, retired={SQL.revision}, leased={"sql": 1}).unloads == ()
    assert plan([], holding).unloads == ()


def test_both_names_of_a_retired_revision_are_unloaded() -> None:
    twice = replica(held={"sql": SQL.load_path, "sql@000000000001": SQL.load_path})
    assert [u.served_name for u in plan([], twice, retired={SQL.revision}).unloads] == ["sql", "sql@000000000001"]


def test_rank_too_big_is_a_verdict_that_no_request_overrules() -> None:
    verdict = Failure(FailureKind.REJECTED, "rank 64 is greater than max_lora_rank 16", 0.0, FOREVER)
    refusing = replica().failing(SQL.revision, verdict)
    assert not due(SQL, refusing, now=1e9, urgent={SQL.revision})


def test_a_passing_failure_is_tried_again_after_its_back_off_and_sooner_when_somebody_waits() -> None:
    lagging = replica().failing(SQL.revision, Failure(FailureKind.MISSING, "No adapter found", 100.0, 400.0))
    assert not due(SQL, lagging, now=399.0, urgent=())
    assert due(SQL, lagging, now=400.0, urgent=())
    assert not due(SQL, lagging, now=104.0, urgent={SQL.revision})
    assert due(SQL, lagging, now=105.0, urgent={SQL.revision})


def test_bad_blocks_good_a_failing_adapter_leaves_the_others_in_the_plan() -> None:
    bad = adapter("a-bad")
    failing = replica().failing(bad.revision, Failure(FailureKind.ERROR, "500", 0.0, 10.0))
    assert [load.adapter.name for load in plan([bad, SQL], failing, now=5.0).loads] == ["sql"]


def test_two_at_once_both_are_loaded_and_nothing_is_unloaded() -> None:
    planned = plan([adapter("alpha"), adapter("beta")], replica())
    assert [load.served_name for load in planned.loads] == ["alpha", "beta"]
    assert planned.unloads == ()


def test_a_new_process_forgets_verdicts_and_whether_it_could_load() -> None:
    refusing = replica().failing(SQL.revision, Failure(FailureKind.REJECTED, "rank", 0.0, FOREVER)).unable()
    reborn = refusing.reborn()
    assert dict(reborn.failures) == {}
    assert replace(reborn, lora=replica().lora) == replica()


def test_a_plan_names_no_more_loads_than_asked_for_in_their_order() -> None:
    adapters = [adapter(f"a{number}") for number in range(5)]
    planned = plan(adapters, replica(1), most=2)
    assert [load.adapter.name for load in planned.loads] == ["a0", "a1"]
