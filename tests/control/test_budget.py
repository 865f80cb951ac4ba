"""How many loads that nobody waits for run at once in the fleet."""

import pytest

from gateway.control.budget import LoadBudget


class Asking:
    """Takes turns and notes who was woken."""

    def __init__(self, fleet: int) -> None:
        self.budget, self.woken = LoadBudget(), list[str]()
        self.budget.fleet = fleet

    def take(self, name: str) -> bool:
        return self.budget.take(name, lambda: self.woken.append(name))


@pytest.mark.parametrize(("fleet", "limit"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (100, 25)])
def test_at_most_a_quarter_of_the_fleet_loads_but_always_one(fleet: int, limit: int) -> None:
    asking = Asking(fleet)
    assert [asking.take(f"r{number}") for number in range(limit + 1)] == [True] * limit + [False]


def test_who_waits_is_woken_first_come_first_served_and_nobody_overtakes() -> None:
    asking = Asking(1)
    assert asking.take("a")
    assert not asking.take("b")
    assert not asking.take("c")
    assert not asking.take("c")
    asking.budget.give_back()
    assert asking.woken == ["b"]
    assert not asking.take("c")
    assert asking.take("b")
    asking.budget.give_back()
    assert asking.woken == ["b", "c"]
    assert asking.take("c")


def test_who_has_no_use_for_a_turn_lets_the_next_one_go() -> None:
    asking = Asking(1)
    assert asking.take("a")
    assert not asking.take("b")
    assert not asking.take("c")
    asking.budget.give_back()
    asking.budget.leave("b")
    assert asking.woken == ["b", "c"]
    assert asking.take("c")


def test_one_that_leaves_without_a_turn_disturbs_nobody() -> None:
    asking = Asking(1)
    assert asking.take("a")
    assert not asking.take("b")
    asking.budget.leave("z")
    assert asking.woken == []
    assert repr(asking.budget) == "<LoadBudget 1 of 1 running, 1 queued>"
