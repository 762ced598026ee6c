"""``auto`` where a bucket cannot wait for later ones, as under fully_shard: links and clocks are only modelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from grace.adapters.choosing import Choosing
from grace.auto import sources
from grace.auto.choices import Buckets, problem_of
from grace.auto.classes import permitted
from grace.auto.planner import Part
from grace.auto.site import Site
from grace.predict.ways import ToOwners
from tests.unit.auto.handles import AUTO, BUCKETS, LIKE, MS, Handle, both, calibration


class Alone(Handle):
    """Each bucket goes as it comes; half of the model's time is before the first, a quarter before each of the others."""

    def __init__(self, transport: Any, link: dict[str, float], method: Any = AUTO):
        self.link, self.waited = link, 0
        super().__init__(transport, method)

    def _site(self) -> Site:
        return replace(super()._site(), holds=False, names=BUCKETS)

    def pass_through(self, broken: bool = False, *, backwards: bool = False) -> None:
        draw = torch.Generator().manual_seed(self.rank)
        self._began()
        left = 0
        for names in BUCKETS[::-1] if backwards else BUCKETS:
            self.now += 50 * MS
            gradients = {name: torch.randn(LIKE[name].shape, generator=draw) for name in names}
            self._comes(names)
            with self._while_it_waits() as waits, self._bucket_alone(names, dict):
                self._session.exchange(gradients)
                spent = int(MS * self.link[self.method_of("second")]) // 2
                self.now += spent if waits else 0
                left += 0 if waits else spent
                self.waited += waits
            if broken:
                return
        self.used.append(self.method_of("second"))
        self.now += left
        self._session.advance()
        assert self._driver is not None
        self._end_step(self._driver)


def test_the_model_is_known_though_no_bucket_is_held(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Alone:
        handle = Alone(member, link)
        for step in range(100):
            handle.pass_through(broken=step == 3)
        return handle

    first, second = both(job)
    explained = first.explain()
    assert explained.compute == pytest.approx(0.1), "without what it waited for"
    assert [bucket.ready for bucket in explained.buckets] == pytest.approx([0.5, 1.0])
    assert first.used == second.used
    assert first.used[-1] == "topk"
    assert explained.verified_at is not None
    assert first.waited == 2 * 7 + 1, "in five steps, one before, one that was broken off, and one after that"
    assert not any(bucket.fused for bucket in explained.buckets)
    assert first._driver is not None
    assert not first._driver.waits


def test_buckets_may_come_in_another_order(link: dict[str, float]) -> None:
    """As those of a branch do that only some passes use."""

    def job(member: Any, rank: int) -> Alone:
        handle = Alone(member, link)
        for step in range(60):
            handle.pass_through(backwards=step % 2 == 1)
        return handle

    first, second = both(job)
    assert first.used == second.used
    explained = first.explain()
    assert explained.stage == "running"
    assert [bucket.tensors for bucket in explained.buckets] in ([*BUCKETS], [*BUCKETS[::-1]])
    assert all(bucket.measured is not None for bucket in explained.buckets)


def test_a_policy_by_whole_shapes_is_resolved(link: dict[str, float]) -> None:
    seen: list[Any] = []

    class Resolving(Alone):
        def _site(self) -> Site:
            return replace(super()._site(), resolve=lambda policy: seen.append(policy) or policy)

    def job(member: Any, rank: int) -> Choosing:
        handle = Resolving(member, link)
        for _ in range(10):
            handle.pass_through()
        return handle

    both(job)
    assert len(seen) >= 2 * 3, "on both ranks what is used first, and each choice"


def test_neighbours_travel_as_one_only_where_they_may() -> None:
    buckets = Buckets(BUCKETS, {name: tuple(x.shape) for name, x in LIKE.items()})
    known = calibration({"none": 4.0, "bf16": 2.0})
    for fuses in (True, False):
        problem = problem_of(buckets, None, known, ["none", "bf16"], fuses=fuses)
        assert (problem.job(Part(0, 2, "none")) is not None) == fuses


def test_small_tensors_ride_in_the_collective_of_large_ones() -> None:
    known = replace(calibration({"none": 4.0, "topk": 2.0}), way=ToOwners())
    shapes = {"topk": [(64, 64)], "none": [(64,)]}
    assert [phase[1] for phase in known.bucket(shapes)] == [
        phase[1] for phase in known.phases("topk", [(64, 64)], beside=4 * 64)
    ]
    alone = known.bucket({"none": [(64, 64), (64,)]})
    assert alone == known.phases("none", [(64, 64), (64,)])
    apart = replace(known, way=calibration({}).way).bucket(shapes)
    assert len(apart) == 6, "a collective for each where means go to all"


@pytest.mark.parametrize(("free", "refused"), [(8 * 4 * 4096, True), (8 * 4 * 8256, False)])
def test_a_memory_of_all_rows_needs_room(free: int, refused: bool) -> None:
    site = Site({name: tuple(x.shape) for name, x in LIKE.items()}, ToOwners())
    assert bool(site.refuse_memory(free)) == refused
    assert replace(site, way=calibration({}).way).refuse_memory(0) == "", "as large as the gradient, which all have"


def test_methods_with_a_memory_are_left_out_where_there_is_no_room(
    link: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = replace(calibration(link), memory=1000)
    monkeypatch.setattr(sources, "calibrate", lambda *_, **__: tight)

    def job(member: Any, rank: int) -> Alone:
        class Owners(Alone):
            def _site(self) -> Site:
                return replace(super()._site(), way=ToOwners())

        return Owners(member, link)

    first = both(job)[0]
    assert "keeps a memory of the rows of all ranks" in first.explain().left_out["topk"]
    assert first.method_of("second") == "qsgd:bits=4"


def test_what_exchanges_alike_is_tried_once() -> None:
    methods, left_out = permitted("safe", 2, way=ToOwners())
    assert "natural" in methods
    assert left_out["natural:communicator=scatterreduce"] == "exchanges as natural does here"
    chosen = permitted("safe", 2, chosen=["powersgd", "topk"], way=ToOwners())
    assert chosen[0] == ["none", "bf16", "topk"]
    assert "no reduce-scatter" in chosen[1]["powersgd"]


def test_of_a_shard_the_rule_goes_by_the_whole_and_the_time_by_the_part() -> None:
    shapes = {"wide": (64, 64), "flat": (4096,)}
    site = Site(shapes, parts={"wide": (16, 64), "flat": (1024,)}, names=(("wide", "flat"),))
    buckets = site.buckets(1000, ())
    assert buckets.numbers == (16 * 64 + 1024,)
    assert buckets.methods_of(0, 1, "topk") == {"topk": [(16, 64)], "none": [(1024,)]}
    assert Buckets((("wide",),), shapes).numbers == (4096,)
