"""Who is suspected of a replica's death, who is convicted, and how a quarantine ends."""

from collections.abc import Collection

import pytest

from gateway.core.adapters import Revision
from gateway.core.strikes import LAST_SECONDS, MANY, TRIAL_AFTER, WITHIN, Answers, Evidence, Failure, Strikes

BAD, GOOD = Revision("bad", "0" * 12), Revision("good", "1" * 12)


def fail(strikes: Strikes, replica: str, revision: Revision, at: float, sent_at: float | None = None) -> None:
    strikes.failed(replica, Failure(revision, at - 0.5 if sent_at is None else sent_at, at))


def die(
    strikes: Strikes, replica: str, at: float, loading: Collection[Revision], there: Answers | None = None, *elsewhere: Answers
) -> list[Revision]:
    return strikes.died(replica, at, loading, Evidence(there or {}, elsewhere))


def twice(strikes: Strikes, *, between: float = 5.0, replicas: tuple[str, str] = ("r1", "r2")) -> list[Revision]:
    fail(strikes, replicas[0], BAD, 99.0)
    die(strikes, replicas[0], 100.0, ())
    fail(strikes, replicas[1], BAD, 100.0 + between)
    return die(strikes, replicas[1], 100.0 + between, ())


@pytest.mark.parametrize("replicas", [("r1", "r2"), ("r1", "r1")], ids=["two replicas", "one replica twice"])
def test_the_suspect_of_two_deaths_is_quarantined_and_the_reason_names_the_replicas(replicas: tuple[str, str]) -> None:
    strikes = Strikes()
    assert twice(strikes, replicas=replicas) == [BAD]
    assert all(replica in strikes.quarantined[BAD].reason for replica in replicas)


def test_one_death_convicts_nobody() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.0)
    assert die(strikes, "r1", 100.0, [GOOD]) == []
    assert strikes.quarantined == {}


def test_deaths_far_apart_have_nothing_in_common() -> None:
    assert twice(Strikes(), between=WITHIN + 1) == []


def test_a_failure_long_before_the_death_makes_no_suspect() -> None:
    strikes = Strikes()
    for replica in ("r1", "r2"):
        fail(strikes, replica, BAD, 100.0 - LAST_SECONDS - 1)
        assert die(strikes, replica, 100.0, ()) == []


def test_who_was_being_loaded_at_two_deaths_is_convicted() -> None:
    strikes = Strikes()
    die(strikes, "r1", 100.0, [BAD])
    assert die(strikes, "r2", 200.0, [BAD, GOOD]) == [BAD]


def test_a_load_since_an_earlier_death_clears_who_was_loaded_and_says_nothing_about_requests() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.0)
    die(strikes, "r1", 100.0, [GOOD])
    strikes.loaded(BAD)
    strikes.loaded(GOOD)
    fail(strikes, "r2", BAD, 109.0)
    assert die(strikes, "r2", 110.0, [GOOD]) == [BAD]


@pytest.mark.parametrize("where", ["there", "elsewhere"])
def test_an_answer_since_an_earlier_death_clears(where: str) -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.0)
    die(strikes, "r1", 100.0, ())
    fail(strikes, "r2", BAD, 109.0)
    answers: list[Answers] = [{BAD: 105.0}, {}] if where == "there" else [{}, {BAD: 105.0}]
    assert die(strikes, "r2", 110.0, (), *answers) == []


def test_an_answer_before_the_earlier_death_clears_nobody() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.0)
    die(strikes, "r1", 100.0, ())
    fail(strikes, "r2", BAD, 109.0)
    assert die(strikes, "r2", 110.0, (), {BAD: 98.0}, {BAD: 99.0}) == [BAD]


def test_an_answer_on_the_dying_replica_after_the_failed_request_was_sent_clears() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.9, sent_at=99.0)
    die(strikes, "r1", 100.0, (), {BAD: 99.5})
    fail(strikes, "r2", BAD, 109.9, sent_at=109.0)
    assert die(strikes, "r2", 110.0, (), {BAD: 108.0}) == []
    fail(strikes, "r1", BAD, 119.9, sent_at=119.0)
    assert die(strikes, "r1", 120.0, ()) == [BAD]


def test_many_suspects_in_common_point_to_the_host() -> None:
    crowd = [Revision(f"a{n}", "2" * 12) for n in range(MANY + 1)]
    strikes = Strikes()
    die(strikes, "r1", 100.0, crowd)
    assert die(strikes, "r2", 101.0, crowd) == []
    assert die(strikes, "r3", 102.0, crowd[:2]) == crowd[:2]


def test_one_trial_at_a_time_and_none_before_its_time() -> None:
    strikes = Strikes()
    twice(strikes)
    due = 105.0 + TRIAL_AFTER
    assert not strikes.begin_trial(BAD, due - 1)
    assert not strikes.begin_trial(GOOD, due)
    assert strikes.begin_trial(BAD, due)
    assert not strikes.begin_trial(BAD, due)
    strikes.end_trial(BAD)
    assert strikes.begin_trial(BAD, due)


def test_a_trial_that_goes_wrong_puts_the_next_one_off() -> None:
    strikes = Strikes()
    twice(strikes)
    due = 105.0 + TRIAL_AFTER
    assert strikes.begin_trial(BAD, due)
    fail(strikes, "r3", BAD, due + 1)
    die(strikes, "r3", due + 1, ())
    assert not strikes.begin_trial(BAD, due + 2)
    assert strikes.begin_trial(BAD, due + 1 + TRIAL_AFTER)


def test_release_ends_a_quarantine_and_forgets_the_deaths() -> None:
    strikes = Strikes()
    twice(strikes)
    assert strikes.release(BAD)
    assert not strikes.release(BAD)
    fail(strikes, "r3", BAD, 109.0)
    assert die(strikes, "r3", 110.0, ()) == []


def test_what_does_not_exist_any_more_is_not_kept() -> None:
    strikes = Strikes()
    twice(strikes)
    strikes.keep([GOOD])
    assert strikes.quarantined == {}


def test_who_ran_is_suspected_before_who_was_being_loaded() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.0)
    die(strikes, "r1", 100.0, [GOOD])
    fail(strikes, "r2", BAD, 109.0)
    assert die(strikes, "r2", 110.0, [GOOD]) == [BAD]
    assert strikes.quarantined.keys() == {BAD}


def test_two_replicas_that_die_at_once_prove_nothing() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.9, sent_at=99.0)
    fail(strikes, "r2", BAD, 99.9, sent_at=99.0)
    die(strikes, "r1", 100.0, ())
    assert die(strikes, "r2", 100.1, ()) == []


def test_who_is_held_by_another_replica_does_not_kill_by_being_loaded() -> None:
    strikes = Strikes()
    die(strikes, "r1", 100.0, [BAD, GOOD])
    assert strikes.died("r2", 200.0, [BAD, GOOD], Evidence(held={GOOD})) == [BAD]


def test_a_retry_is_told_from_a_request_that_ran_meanwhile_also_when_a_death_is_noticed_late() -> None:
    strikes = Strikes()
    fail(strikes, "r1", BAD, 99.1, sent_at=99.0)
    fail(strikes, "r2", BAD, 99.3, sent_at=99.2)
    die(strikes, "r1", 101.0, ())
    assert die(strikes, "r2", 101.2, ()) == [BAD]
