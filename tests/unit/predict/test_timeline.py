import itertools
import random

import pytest

from grace.errors import ConfigurationError
from grace.predict.timeline import bucket_readiness, hops, play, share_cores, shares_of, usual_readiness, wire_bytes

KINDS = ("AllReduce", "AllGather", "AllToAll", "ReduceScatter", "Broadcast", "Permute")


@pytest.mark.parametrize(
    ("kind", "messages", "moved"),
    [
        ("AllReduce", 6, 1.5), ("AllGather", 3, 3.0), ("AllToAll", 3, 0.75), ("ReduceScatter", 6, 1.5),
        ("Broadcast", 2, 2.0), ("Permute", 1, 1.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", ["", " along machine"])
def test_four_workers(kind, messages, moved, more):
    assert hops(kind + more, 4) == messages
    assert wire_bytes(kind + more, 1000.0, 4) == pytest.approx(1000 * moved)
    if kind in ("AllReduce", "ReduceScatter"):
        assert wire_bytes(f"{kind} in 16 bits{more}", 1000.0, 4) == 1000 * moved


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_moves_nothing(kind):
    assert hops(kind, 1) == 0
    assert wire_bytes(kind, 1000.0, 1) == 0


@pytest.mark.parametrize(("world", "levels"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_tree_has_levels(world, levels):
    assert hops("Broadcast", world) == levels


def random_step(rng, *, rounds=1):
    """compute, ready, jobs."""
    buckets = rng.randint(1, 6)
    ready = sorted(rng.uniform(0.2, 0.95) for _ in range(buckets))
    jobs = []
    for _ in range(buckets):
        job = [(c := rng.uniform(0.0, 0.2), c)]
        for _ in range(rounds):
            seconds = rng.uniform(0.01, 0.4)
            job += [(rng.uniform(0, 1) * seconds, seconds), (c := rng.uniform(0.0, 0.2), c)]
        jobs.append(job)
    return rng.uniform(0.5, 2.0), ready, jobs


def one_lane(compute, ready, jobs):
    """The closed form: F_j = max(F_(j-1), r_j) + d_j."""
    end = 0.0
    for at, job in zip(ready, jobs, strict=True):
        end = max(end, at * compute) + sum(seconds for _, seconds in job)
    last = ready[-1] * compute
    return max(last, end) + compute - last


def two_lanes(compute, ready, jobs):
    """The closed form where all encoding comes first: X_j, N_j, D_j."""
    encoded = moved = decoded = 0.0
    for at, ((_, enc), (_, net), (_, dec)) in zip(ready, jobs, strict=True):
        encoded = max(encoded, at * compute) + enc
        moved = max(moved, encoded) + net
        decoded = max(decoded, moved) + dec
    last = ready[-1] * compute
    return max(last, decoded) + compute - last


@pytest.mark.parametrize("seed", range(50))
def test_with_cores_to_spare_one_lane_has_a_closed_form(seed):
    compute, ready, jobs = random_step(random.Random(seed), rounds=1 + seed % 2)
    assert play(compute, 1, 3.0, ready, jobs) == pytest.approx(one_lane(compute, ready, jobs), abs=1e-9)


@pytest.mark.parametrize("seed", range(50))
def test_with_cores_to_spare_two_lanes_have_a_closed_form_and_are_never_later(seed):
    rng = random.Random(seed)
    compute, ready, jobs = random_step(rng)
    for job in jobs:  # decoding takes nothing, so that no encoding waits for it
        job[2] = (0.0, 0.0)
    played = play(compute, 1, 4.0, ready, jobs, 2)
    assert played == pytest.approx(two_lanes(compute, ready, jobs), abs=1e-9)
    for rounds, older in itertools.product((1, 2), (True, False)):
        compute, ready, jobs = random_step(rng, rounds=rounds)
        apart, alone = play(compute, 1, 4.0, ready, jobs, 2, older_first=older), play(compute, 1, 4.0, ready, jobs)
        assert rounds == 2 or apart <= alone + 1e-9


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("lanes", [1, 2])
def test_no_step_is_shorter_than_its_processor_time(seed, lanes):
    compute, ready, jobs = random_step(random.Random(seed), rounds=1 + seed % 3)
    cores = random.Random(seed).choice([0.25, 0.5, 1.0, 2.0])
    work = compute + sum(cpu for job in jobs for cpu, _ in job)
    played = play(compute, 1, cores, ready, jobs, lanes)
    assert played >= work / cores * (1 - 1e-9)
    assert played <= compute / min(1, cores) + sum(max(s, c / cores) for job in jobs for c, s in job) * 3


def test_two_lanes_encode_the_next_bucket_while_one_moves():
    job = [(0.1, 0.1), (0.0, 1.0), (0.1, 0.1)]
    assert play(1.0, 1, 4.0, (0.5, 0.5), [job, job]) == pytest.approx(0.5 + 2.4 + 0.5)
    assert play(1.0, 1, 4.0, (0.5, 0.5), [job, job], 2) == pytest.approx(0.5 + 0.1 + 2.0 + 0.1 + 0.5)


def test_the_order_of_moves_is_by_bucket_and_round():
    """Two rounds: the older bucket's second move goes before the younger one's first, or after it."""
    jobs = [[(0.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.0, 1.0), (0.0, 0.0)], [(0.0, 0.0), (0.0, 1.0), (0.0, 0.0)]]
    assert play(0.0, 1, 4.0, (0.0, 0.0), jobs, 2) == pytest.approx(1 + 0.5 + 1 + 1)
    assert play(0.0, 1, 4.0, (0.0, 0.0), jobs, 2, older_first=False) == pytest.approx(1 + 1 + 1)


def test_cores_are_shared_fairly():
    assert share_cores([1.0, 0.5], 2.0) == [1.0, 0.5]
    assert share_cores([1.0, 0.25], 1.0) == [0.75, 0.25]
    assert share_cores([1.0, 1.0, 0.1], 1.0) == pytest.approx([0.45, 0.45, 0.1])
    assert share_cores([0.0, 2.0], 1.0) == [0.0, 1.0]


@pytest.mark.parametrize("lanes", [0, 3])
def test_other_numbers_of_lanes_are_refused(lanes):
    with pytest.raises(ConfigurationError, match=f"lanes={lanes} is out of range; legal: 1 or 2"):
        play(1.0, 1, 1.0, (), [], lanes)


def test_nothing_to_exchange():
    assert play(1.0, 1, 1.0, (), []) == pytest.approx(1.0)
    assert play(1.0, 1, 0.5, (), [], 2) == pytest.approx(2.0)


def test_buckets_are_ready_with_their_last_parameter():
    assert bucket_readiness([(0.4, 10), (0.5, 20), (0.8, 30)], [30, 30]) == (0.5, 0.8)
    assert bucket_readiness([(0.4, 10)], [10]) == (0.4,)
    assert usual_readiness([1, 3]) == pytest.approx((0.525, 0.9))
    assert shares_of([1, 3]) == (0.25, 0.75)
