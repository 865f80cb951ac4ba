"""The status document: exactly the fields that scripts rely on, and what it says of each kind of adapter."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.admin.cells import in_letters
from gateway.core.adapters import Home, RejectedState
from gateway.core.replica import LoraSupport, Phase
from tests.admin.desk import LOAD_FAILURE, Desk, broken
from tests.core.fleet import adapter, replica

SQL, CHAT = adapter("sql", 1), adapter("team/chat", 2, home=Home.OWN_PATH)
GATEWAY = {"version", "ready", "reason", "started_at", "watch", "placement", "snapshots", "snapshots_reason"}
ADAPTER = {
    *("name", "revision", "path", "base_model", "rank", "state", "reason", "warnings", "inflight", "snapshot"),
    "replicas",
}
REPLICA = {"id", "url", "phase", "reason", "lora", "base_models", "held", "static", "inflight", "last_seen"}


def desk(*adapters: Any, replicas: int = 2, held: tuple[Any, ...] = ()) -> Desk:
    made = Desk()
    made.join(*(replica(n, {a.name: a.load_path for a in held}) for n in range(1, replicas + 1)))
    made.put(*(adapters or (SQL,)))
    return made


def row(of: Desk, name: str) -> dict[str, Any]:
    found = of.status.adapter(name)
    assert found is not None
    return found


def test_the_document_has_every_field_of_the_contract() -> None:
    document = desk(held=(SQL,)).status.document()
    assert document.keys() == {"gateway", "adapters", "replicas"}
    assert document["gateway"].keys() >= GATEWAY
    assert all(adapter_row.keys() >= ADAPTER for adapter_row in document["adapters"])
    assert all(replica_row.keys() >= REPLICA for replica_row in document["replicas"])


def test_every_kind_of_row_has_the_same_fields() -> None:
    made = desk(SQL, held=(SQL, adapter("gone", 7)))
    made.put(SQL, rejected=(broken("half", RejectedState.INCOMPLETE, "no weights yet"),))
    rows = {found["name"]: found for found in made.status.adapters()}
    assert {name: found["state"] for name, found in rows.items()} == {
        "gone": "removing",
        "half": "incomplete",
        "sql": "ready",
    }
    assert rows["gone"].keys() == rows["sql"].keys()
    assert rows["half"].keys() == rows["sql"].keys() | {"since"}


def test_a_ready_adapter_tells_what_it_is_and_the_name_it_has_on_each_replica() -> None:
    made = desk(held=(SQL,))
    assert row(made, "sql") == {
        "name": "sql",
        "pinned": False,
        "revisions": [{"revision": SQL.digest, "stored": False, "replicas": ["r1:8000", "r2:8000"]}],
        "revision": "000000000001",
        "path": "/adapters/sql",
        "base_model": "base-a",
        "rank": 8,
        "state": "ready",
        "reason": "",
        "warnings": [],
        "snapshot": "link",
        "size_bytes": 1000,
        "seen_at": 0.0,
        "inflight": 0,
        "replicas": {
            "r1:8000": {"state": "loaded", "reason": "", "served_name": "sql"},
            "r2:8000": {"state": "loaded", "reason": "", "served_name": "sql"},
        },
    }


def test_each_cell_says_loaded_loading_failed_or_absent_with_the_reason() -> None:
    made = desk(replicas=4)
    made.load(1, SQL)
    made.publish(made.replica(2).beginning(SQL.revision))
    made.fail(3, SQL)
    cells = row(made, "sql")["replicas"]
    assert {where: cell["state"] for where, cell in cells.items()} == {
        "r1:8000": "loaded",
        "r2:8000": "loading",
        "r3:8000": "failed",
        "r4:8000": "absent",
    }
    assert cells["r3:8000"] == {"state": "failed", "reason": LOAD_FAILURE, "kind": "rejected", "attempts": 1}
    assert cells["r4:8000"] == {"state": "absent", "reason": ""}
    assert row(made, "sql")["state"] == "partial"


def test_letters_say_the_same_as_the_full_cells_and_share_the_reasons() -> None:
    made = desk(replicas=5)
    made.load(1, SQL)
    made.publish(made.replica(2).beginning(SQL.revision))
    made.fail(3, SQL)
    made.fail(5, SQL)
    (told,) = made.status.adapters(in_letters)
    assert told["cells"] == "hlf.f"
    assert told["failures"] == {LOAD_FAILURE: [2, 4]}
    assert "replicas" not in told
    assert [counted["id"] for counted in made.status.replica_counts()] == [f"r{n}:8000" for n in range(1, 6)]
    assert [counted["held"] for counted in made.status.replica_counts()] == [1, 0, 0, 0, 0]


def test_an_adapter_that_every_replica_refuses_is_rejected_with_the_replicas_words_and_the_remedy() -> None:
    made = desk(replace(SQL, rank=128))
    for number in (1, 2):
        made.fail(number, SQL)
    found = row(made, "sql")
    assert found["state"] == "rejected"
    assert LOAD_FAILURE in found["reason"]
    assert "--max-lora-rank 128" in found["reason"]


@pytest.mark.parametrize("state", list(RejectedState), ids=str)
def test_a_folder_that_is_no_adapter_now_is_told_with_its_reason(state: RejectedState) -> None:
    made = desk()
    made.put(SQL, rejected=(broken("bad", state, "the header is cut off"),))
    found = row(made, "bad")
    assert (found["state"], found["reason"], found["path"]) == (state.value, "the header is cut off", "/adapters/bad")
    assert (found["revision"], found["rank"], found["snapshot"], found["replicas"]) == (None, None, None, {})


def test_broken_new_files_beside_an_older_revision_that_serves_are_told_and_hide_no_other_reason() -> None:
    made = desk(held=(SQL,))
    rejected = (broken("sql", RejectedState.INCOMPLETE, "weights are missing"),)
    made.put(SQL, rejected=rejected)
    assert row(made, "sql")["state"] == "ready"
    assert row(made, "sql")["reason"] == "new files are incomplete: weights are missing"
    made.publish(made.replica(1).naming({}))
    made.fail(1, SQL)
    assert LOAD_FAILURE in row(made, "sql")["reason"]
    assert row(made, "sql")["reason"].endswith("new files are incomplete: weights are missing")


def test_a_removed_adapter_shows_until_no_replica_holds_it() -> None:
    made = desk(SQL, CHAT, held=(SQL,))
    made.put(CHAT)
    found = row(made, "sql")
    assert (found["state"], found["revision"]) == ("removing", SQL.digest)
    assert [cell["state"] for cell in found["replicas"].values()] == ["loaded", "loaded"]
    for number in (1, 2):
        made.publish(made.replica(number).without("sql"))
    assert made.status.adapter("sql") is None
    assert [found["name"] for found in made.status.adapters()] == ["team/chat"]


def test_requests_in_flight_count_for_their_adapter_whatever_its_revision_there() -> None:
    made = desk(adapter("sql", 5), held=(SQL,))
    made.load(1, adapter("sql", 5))
    stations = made.registry.stations
    stations["r1:8000"].by_name = {"sql": 2}
    stations["r2:8000"].by_name = {"sql": 3, "base-a": 4}
    assert row(made, "sql")["inflight"] == 5


def test_an_adapter_loaded_from_its_own_folder_says_so_and_why() -> None:
    made = desk(replace(CHAT, home_reason="links across filesystems are not possible"))
    found = row(made, "team/chat")
    assert found["snapshot"] == "own path"
    assert found["warnings"] == ["loaded from its own folder: links across filesystems are not possible"]


def test_a_replica_tells_what_it_holds_by_revision_and_what_is_not_ours() -> None:
    made = Desk()
    made.join(replica(1, {"sql@000000000001": SQL.load_path, "elsewhere": "/opt/x"}))
    made.publish(replace(made.replica(1), lora=LoraSupport.SUPPORTED, phase=Phase.DRAINING, reason="an operator"))
    made.registry.stations["r1:8000"].inflight = 3
    (told,) = made.status.replicas()
    assert told.pop("last_seen") > 0
    assert told == {
        "id": "r1:8000",
        "url": "http://r1:8000",
        "phase": "draining",
        "reason": "an operator",
        "lora": "supported",
        "base_models": ["base-a"],
        "inflight": 3,
        "held": ["sql@000000000001"],
        "served_names": {"sql@000000000001": "sql@000000000001"},
        "static": ["elsewhere"],
        "loading": [],
    }


def test_readiness_names_what_is_missing_in_the_order_in_which_it_comes() -> None:
    made = Desk()
    assert made.status.readiness().reason == "the adapter directory has not been read yet"
    made.put(SQL)
    assert made.status.readiness().reason == "0 of 0 replicas are ready"
    made.join(replica(1, ready=False))
    assert made.status.readiness().reason == "0 of 1 replicas are ready (r1:8000: not probed yet)"
    made.join(replica(2))
    assert made.status.readiness().ready
    made.closing = True
    assert made.status.readiness().reason == "the gateway is shutting down"


def test_an_unreadable_directory_is_told_while_the_last_catalog_serves() -> None:
    made = desk(held=(SQL,))
    made.put(SQL, trouble="the directory is not mounted")
    assert made.status.gateway()["directory"] == "the directory is not mounted"
    assert (made.status.gateway()["ready"], made.status.gateway()["reason"]) == (True, "the directory is not mounted")
    assert row(made, "sql")["state"] == "ready"
