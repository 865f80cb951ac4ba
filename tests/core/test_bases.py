"""Base model names as operators write them."""

import pytest

from gateway.core.bases import Bases, Fit, normalised
from tests.core.fleet import adapter, replica

HUB = "/home/u/hub/models--org--base-a/snapshots/7683fea62db869066ddaff6a41d032262c490d4f"


@pytest.mark.parametrize(
    "name",
    [
        "base-a",
        "org/base-a",
        "/root/models/base-a/",
        HUB,
        "org/base-a-bnb-4bit",
        "org/Base-A-unsloth-bnb-4bit",
        "x/base-a-AWQ",
    ],
)
def test_base_name_forms_compare_by_their_last_part_without_the_marks_of_a_quantised_twin(name: str) -> None:
    assert normalised(name) == "base-a"


@pytest.mark.parametrize("name", ["base-a-v2", "base-ab", "my-base-a", "base-a-instruct"])
def test_other_models_stay_other_models(name: str) -> None:
    assert normalised(name) != "base-a"


@pytest.mark.parametrize(
    ("base", "strict", "fleet", "fit"),
    [
        pytest.param("org/base-a", False, [("base-a",)], Fit.MATCH, id="same"),
        pytest.param(None, True, [("base-a",), ("base-b",)], Fit.MATCH, id="null is accepted"),
        pytest.param("other", False, [("base-a",)], Fit.DIFFERS, id="one base, another name: a warning"),
        pytest.param("other", True, [("base-a",)], Fit.NONE, id="strict"),
        pytest.param("other", False, [("base-a",), ("base-b",)], Fit.NONE, id="several bases, none matches"),
        pytest.param("base-b", False, [("base-a",), ("base-b",)], Fit.MATCH, id="several bases, one matches"),
        pytest.param("alias", False, [("base-a", "alias")], Fit.MATCH, id="an alias of the base"),
        pytest.param("other", True, [], Fit.MATCH, id="no replica known yet"),
    ],
)
def test_an_adapter_fits_or_not(base: str | None, strict: bool, fleet: list[tuple[str, ...]], fit: Fit) -> None:
    bases = Bases.of((replica(n, bases=group) for n, group in enumerate(fleet)), strict=strict)
    assert bases.fit(adapter("x", base=base)) is fit


def test_with_several_bases_an_adapter_goes_to_the_replicas_of_its_own() -> None:
    bases = Bases.of([replica(1, bases=("base-a",)), replica(2, bases=("base-b",))])
    made_for_b = adapter("x", base="base-b")
    assert bases.accepts(made_for_b, ("base-b",))
    assert not bases.accepts(made_for_b, ("base-a",))
    assert bases.parent(made_for_b) == "base-b"


def test_a_mismatch_names_both() -> None:
    text = Bases.of([replica(1)]).mismatch(adapter("x", base="other"))
    assert "'other'" in text
    assert "'base-a'" in text
