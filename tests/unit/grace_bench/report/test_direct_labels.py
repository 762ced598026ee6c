import itertools

import pytest

from grace_bench.report.direct_labels import Axis, axis_of, beside_ends, beside_points, height_for, spread_out

LOOK = {"stroke": "#000", "fill": "#000", "shape": "circle", "dash": (), "width": 1, "opacity": 1}


@pytest.mark.parametrize("wanted", [[0, 0, 0], [5, 3, 4, 90], [100] * 4, [50, 51, 49, 50.5], [10]])
def test_names_are_apart_within_and_in_order(wanted):
    places = spread_out(wanted, 10, 100)
    ordered = sorted(zip(wanted, places, strict=True))
    assert all(right[1] - left[1] >= 10 - 1e-9 for left, right in itertools.pairwise(ordered))
    assert min(places) >= 0
    assert max(places) <= 100


def test_what_has_room_stays():
    assert spread_out([80, 20, 50], 10, 100) == [80, 20, 50]


@pytest.mark.parametrize("scale", [{}, {"type": "log"}, {"type": "pow", "exponent": 4.0}])
def test_an_axis_has_all_its_values_inside(scale):
    values = [0.2, None, 0.9, 0.95]
    axis = axis_of(values, 300, scale)
    parts = [axis.part(value) for value in values if value is not None]
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[-1] < 1
    assert axis.scale["domain"] == [axis.least, axis.most]


def test_an_axis_of_one_value_or_of_none_is_one():
    for values, scale in itertools.product(([3.0], [0.0], [], [None]), ({}, {"type": "log"})):
        axis = axis_of(values, 300, scale)
        assert axis.least < axis.most


def test_a_logarithm_halves_its_decades():
    assert Axis(1, 100, 10, 0).part(10) == pytest.approx(0.5)


def test_every_end_has_a_name_and_points_those_that_have_room():
    ends = [(300.0, 100.0, {**LOOK, "name": f"n{k}"}) for k in range(8)]
    text = beside_ends(ends, 300, height_for(8, 50))[-1]
    assert {row["name"] for row in text["data"]["values"]} == {f"n{k}" for k in range(8)}
    crowd = [(50.0, 50.0, {**LOOK, "name": "a long name", "rank": k}) for k in range(40)]
    *_, names = beside_points(crowd, 100, 100, most=39)
    boxes = [(row["left"], row["middle"]) for row in names["data"]["values"]]
    assert 1 <= len(boxes) < 40
    assert len(set(boxes)) == len(boxes)
    *_, none = beside_points(crowd, 100, 100, most=-1)
    assert none["data"]["values"] == []
