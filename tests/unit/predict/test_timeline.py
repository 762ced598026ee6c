import dataclasses
import random

import pytest

from grace.predict.timeline import (
    Host,
    bucket_readiness,
    hops,
    play,
    share_cores,
    shares_of,
    usual_readiness,
    wire_bytes,
)

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


@pytest.mark.parametrize("seed", range(50))
def test_with_cores_to_spare_one_lane_has_a_closed_form(seed):
    compute, ready, jobs = random_step(random.Random(seed), rounds=1 + seed % 2)
    assert play(compute, 1, 3.0, ready, jobs) == pytest.approx(one_lane(compute, ready, jobs), abs=1e-9)


def random_host(rng, ready, compute):
    """A host that is somewhat ahead of the device, or behind it."""
    lead = rng.uniform(-0.1, 0.5)
    arrives = [at * compute * rng.uniform(0.5, 1.0) - lead for at in ready]
    return Host(rng.uniform(0.0, 1.5), sorted(arrives), [rng.uniform(0.0, 0.3) for _ in ready])


def with_host(compute, ready, jobs, host):
    """The closed form with a host: i_j = a_j + h_1 + ... + h_j, F_j = max(F_(j-1), r_j, i_j) + d_j."""
    end = issuing = 0.0
    for at, arrives, issues, job in zip(ready, host.arrives, host.issues, jobs, strict=True):
        issuing += issues
        end = max(end, at * compute, arrives + issuing) + sum(seconds for _, seconds in job)
    last = ready[-1] * compute
    return max(max(last, end) + compute - last, host.own + issuing)


@pytest.mark.parametrize("seed", range(50))
def test_a_host_is_a_lane_more(seed):
    rng = random.Random(seed)
    compute, ready, jobs = random_step(rng)
    host = random_host(rng, ready, compute)
    played = play(compute, 1, 3.0, ready, jobs, host)
    assert played == pytest.approx(with_host(compute, ready, jobs, host), abs=1e-9)
    assert played >= play(compute, 1, 3.0, ready, jobs)
    free = dataclasses.replace(host, arrives=())
    assert play(compute, 1, 3.0, ready, jobs, free) == max(play(compute, 1, 3.0, ready, jobs), host.seconds)


def test_a_bucket_begins_when_the_host_has_issued_it():
    """The second bucket is there at 0.5, and the host has issued it at 0.9; the first at 0.4, before it is there."""
    jobs = [[(0.0, 0.1)], [(0.0, 0.2)]]
    host = Host(0.0, (0.1, 0.2), (0.3, 0.4))
    assert host.issued == pytest.approx([0.4, 0.9])
    assert play(0.5, 1, 4.0, (1.0, 1.0), jobs, host) == pytest.approx(0.9 + 0.2)
    assert play(0.5, 1, 4.0, (1.0, 1.0), jobs) == pytest.approx(0.5 + 0.3)
    assert play(0.5, 1, 4.0, (1.0, 1.0), jobs, Host(2.0, (), (0.3, 0.4))) == pytest.approx(2.7), (
        "the host is the slowest"
    )


def test_urgent_codecs_take_their_own_time_and_the_model_waits():
    job = [(0.2, 0.2), (0.0, 0.3), (0.1, 0.1)]
    assert play(1.0, 1, 1.0, (0.4, 1.0), [job, []], urgent=True) == pytest.approx(1.0 + 0.3)
    fair = play(1.0, 1, 1.0, (0.4, 1.0), [job, []])
    assert fair == pytest.approx(1.3), "no core idles"
    last = [[], job]
    assert play(1.0, 1, 1.0, (0.4, 1.0), last, urgent=True) == play(1.0, 1, 1.0, (0.4, 1.0), last)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("urgent", [False, True])
def test_no_step_is_shorter_than_its_processor_time(seed, urgent):
    compute, ready, jobs = random_step(random.Random(seed), rounds=1 + seed % 3)
    cores = random.Random(seed).choice([0.25, 0.5, 1.0, 2.0])
    work = compute + sum(cpu for job in jobs for cpu, _ in job)
    played = play(compute, 1, cores, ready, jobs, urgent=urgent)
    assert played >= work / cores * (1 - 1e-9)
    assert played <= compute / min(1, cores) + sum(max(s, c / cores) for job in jobs for c, s in job) * 3


def test_cores_are_shared_fairly():
    assert share_cores([1.0, 0.5], 2.0) == [1.0, 0.5]
    assert share_cores([1.0, 0.25], 1.0) == [0.75, 0.25]
    assert share_cores([1.0, 1.0, 0.1], 1.0) == pytest.approx([0.45, 0.45, 0.1])
    assert share_cores([0.0, 2.0], 1.0) == [0.0, 1.0]


def test_nothing_to_exchange():
    assert play(1.0, 1, 1.0, (), []) == pytest.approx(1.0)
    assert play(1.0, 1, 0.5, (), [], urgent=True) == pytest.approx(2.0)
    assert play(1.0, 1, 1.0, (), [], Host(3.0)) == pytest.approx(3.0)


def test_buckets_are_ready_with_their_last_parameter():
    assert bucket_readiness([(0.4, 10), (0.5, 20), (0.8, 30)], [30, 30]) == (0.5, 0.8)
    assert bucket_readiness([(0.4, 10)], [10]) == (0.4,)
    assert usual_readiness([1, 3]) == pytest.approx((0.525, 0.9))
    assert shares_of([1, 3]) == (0.25, 0.75)
