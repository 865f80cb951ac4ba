"""What a name resolves to, and how leases count."""

from dataclasses import replace

import pytest

from gateway.core.adapters import Catalog, Rejected, RejectedState, Revision
from gateway.core.errors import AdapterIncomplete, AdapterRejected, InvalidRequest
from gateway.core.picker import pick
from gateway.core.registry import Registry
from gateway.core.replica import Phase, Replica
from tests.core.fleet import adapter, catalog, replica

SQL = adapter("sql", 1)


def registry(*replicas: Replica, adapters: Catalog | None = None) -> Registry:
    made = Registry()
    for record in replicas:
        made.join(Replica(record.id, record.url))
        made.publish(record, 0.0)
    made.replace_catalog(adapters or catalog(SQL), 0.0)
    return made


def test_an_adapter_goes_only_to_ready_replicas_that_hold_its_current_revision() -> None:
    old = adapter("sql", 9)
    fleet = registry(
        replica(1, {"sql": SQL.load_path}),
        replica(2, {"sql": old.load_path}),
        replica(3, {"sql@000000000001": SQL.load_path}),
        replace(replica(4, {"sql": SQL.load_path}), phase=Phase.DOWN),
    )
    route = fleet.route("sql")
    assert route is not None
    assert [(s.station.replica.id, s.served_name) for s in route.seats] == [
        ("r1:8000", "sql"),
        ("r3:8000", "sql@000000000001"),
    ]


def test_a_pinned_revision_goes_where_it_is_held_while_the_name_exists() -> None:
    fleet = registry(replica(1, {"sql": adapter("sql", 9).load_path}))
    pinned = fleet.route("sql@000000000009")
    assert pinned is not None
    assert pinned.label == "sql"
    assert fleet.route("sql@00000000000a") is None
    fleet.replace_catalog(Catalog(), 0.0)
    assert fleet.route("sql@000000000009") is None


def test_base_name_clash_the_base_model_wins() -> None:
    fleet = registry(replica(1), adapters=catalog(adapter("base-a")))
    route = fleet.route("base-a")
    assert route is not None
    assert route.adapter is None


def test_a_static_lora_of_a_replica_is_served_there_and_the_catalog_wins_over_it() -> None:
    fleet = registry(replica(1, {"static": "/elsewhere/x", "sql": "/elsewhere/y"}))
    static, sql = fleet.route("static"), fleet.route("sql")
    assert static is not None
    assert [s.served_name for s in static.seats] == ["static"]
    assert sql is not None
    assert sql.seats == ()


def test_unknown_model_resolves_to_nothing() -> None:
    assert registry(replica(1)).route("gpt-4o-mini") is None


@pytest.mark.parametrize(
    "name",
    ["../secrets", "/etc", "sql/../../x", "..\\x", "%2e%2e/x", "sql\0", "/adapters/sql", "x" * 1_000_000, " sql"],
)
def test_traversal_names_are_compared_whole_and_never_kept(name: str) -> None:
    fleet = registry(replica(1))
    assert fleet.route(name) is None
    assert name not in fleet._routes


@pytest.mark.parametrize(
    "name", ["team/alpha", "base-a:v2", "a_b", "v1.2", "alpha beta", "ünï", "a%2Fb", "x" * 200, 'quote"q', "a@b"]
)
def test_odd_names_are_compared_whole(name: str) -> None:
    odd = adapter(name)
    fleet = registry(replica(1, {name: odd.load_path}), adapters=catalog(odd))
    route = fleet.route(name)
    assert route is not None
    assert [s.served_name for s in route.seats] == [name]


@pytest.mark.parametrize(
    ("state", "error"), [(RejectedState.INVALID, AdapterRejected), (RejectedState.INCOMPLETE, AdapterIncomplete)]
)
def test_a_rejected_folder_says_why(state: RejectedState, error: type[Exception]) -> None:
    bad = Rejected("bad", "/adapters/bad", state, "the reason")
    fleet = registry(replica(1), adapters=Catalog({}, {"bad": bad}))
    with pytest.raises(error, match="the reason"):
        fleet.route("bad")


def test_new_files_that_are_broken_leave_the_old_revision_serving() -> None:
    bad = Rejected("sql", "/adapters/sql", RejectedState.INVALID, "the reason")
    fleet = registry(replica(1, {"sql": SQL.load_path}), adapters=Catalog({"sql": SQL}, {"sql": bad}))
    route = fleet.route("sql")
    assert route is not None
    assert route.seats


def test_an_absent_model_is_the_only_base_model() -> None:
    assert registry(replica(1, bases=("base-a", "alias")), replica(2, bases=("base-a", "alias"))).absent_model() == "base-a"
    with pytest.raises(InvalidRequest, match="several base models"):
        registry(replica(1), replica(2, bases=("base-b",))).absent_model()


def test_a_lease_counts_until_it_is_released_once() -> None:
    fleet = registry(replica(1, {"sql": SQL.load_path}))
    route = fleet.route("sql")
    assert route is not None
    seat = pick(route.seats, 0)
    assert seat is not None
    lease = fleet.lease(route, "sql", seat)
    station = fleet.stations["r1:8000"]
    assert (station.inflight, station.by_name) == (1, {"sql": 1})
    lease.release()
    lease.release()
    assert (station.inflight, station.by_name) == (0, {})


def test_a_revision_of_ours_that_the_catalog_does_not_know_is_retired_after_two_scans_and_the_linger_time() -> None:
    stranger = Revision("other", "000000000007")
    fleet = registry(replica(1, {"other": "/adapters/.lora-gateway/other@000000000007"}))
    assert fleet.retired(100.0, 60.0) == set()
    fleet.scans += 2
    assert fleet.retired(59.0, 60.0) == set()
    assert fleet.retired(60.0, 60.0) == {stranger}


def test_a_lost_revision_goes_nowhere_until_it_is_whole_again() -> None:
    fleet = registry(replica(1, {"sql": SQL.load_path}))
    fleet.lose(SQL.revision, "its files changed")
    route = fleet.route("sql")
    assert route is not None
    assert route.seats == ()
    assert fleet.retired(0.0, 60.0) == {SQL.revision}
    fleet.recover(SQL.revision)
    again = fleet.route("sql")
    assert again is not None
    assert again.seats
