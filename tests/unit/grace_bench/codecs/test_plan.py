import pytest

import grace
from grace.compute import resources
from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.codecs.plan import canonical, parse_sizes, plan_of, size_text


def test_by_default_every_registered_method_is_measured_on_all_cores():
    plan = plan_of()
    assert set(plan.methods) == {canonical(name) for name in grace.methods()}
    assert (plan.sizes, plan.threads) == ((262_144, 1_000_000, 10_000_000), (resources.cores(),))
    assert [name for name, _ in plan_of("topk", "4K", [1]).jobs(4096, 1)] == ["yardsticks", "topk"]


def test_sizes_as_they_are_written():
    assert parse_sizes("4K, 1000,6.5M,25m") == [4096, 1000, 6_500_000, 25_000_000]
    assert [size_text(size) for size in (4096, 1000, 262_144, 6_500_000, 4096 * 1024)] == [
        "4K", "1000", "256K", "6.5M", "4096K"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "9" * 400, "4G", "-1", "1.5", "0.0001K", "4K,"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigurationError, match=r"legal: such as 4096, 256K or 6\.5M"):
        parse_sizes(text)


def test_one_method_in_two_spellings_is_measured_once():
    assert plan_of("topk:ratio=0.01,topk,randomk:ratio=0.01").methods == ("randomk", "topk")
    assert canonical("qsgd:bits=8,memory=none") == "qsgd:bits=8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chosen": "topkk"}, "did you mean 'topk'"),
        ({"chosen": ","}, "methods=.*one method or more"),
        ({"workers": 1}, r"workers=1 .*legal: 2, 3, \.\.\., 256"),
        ({"sizes": "0"}, "sizes=.*1 to 1,000,000,000"),
        ({"threads": [0]}, "threads=.*1 to 1,024"),
        ({"samples": 2}, r"samples=2 .*legal: 3, 4, \.\.\., 1000"),
        ({"limit": 0.0}, "limit=0.0 .*0 < limit < inf"),
        ({"budget": -1.0}, "budget=-1.0 .*0 < budget < inf"),
    ],
)
def test_what_is_not_legal(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_of(**arguments)


def test_an_unknown_method_has_no_canonical_form():
    with pytest.raises(UnknownNameError):
        canonical("nothing_of_the_kind")
