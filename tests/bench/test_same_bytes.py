"""The same request gives the same plan: a thousand requests, in two other processes, under load."""

import hashlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from planner_client.contract import PlanRequest
from planner_service.profiles import builtin_profiles
from planner_service.translate import plan_request

pytestmark = [pytest.mark.bench, pytest.mark.long]
NUM_REQUESTS = 1000
TIMINGS = {"planning_ms"}


def request(seed: int) -> PlanRequest:
    generator = np.random.default_rng(seed)
    lengths = np.minimum(generator.lognormal(6.5, 1.3, int(generator.integers(0, 40))).astype(int) + 1, 15_000)
    return PlanRequest.model_validate(
        {
            "profile": str(generator.choice(["llama-7b-a800-80g", "llama-13b-a800-80g", "llama-32b-a800-80g"])),
            "num_gpus": int(generator.choice([16, 32])),
            "lengths": lengths.tolist(),
            "options": {"seed": seed, "deadline_ms": 100, "equal_micro_batch_counts": bool(seed % 5 == 0)},
        }
    )


def digests(seeds: range) -> list[str]:
    """Digest of each whole plan but for its own planning time; a refusal counts by its words."""
    found = []
    for seed in seeds:
        asked = request(seed)
        name = asked.profile if isinstance(asked.profile, str) else ""
        try:
            plan = plan_request(asked, [builtin_profiles()[name]], remaining_ms=lambda: 1e9)
            body = plan.model_dump_json(exclude=TIMINGS)
        except Exception as fault:  # noqa: BLE001 - what is refused must be refused in the same words
            body = f"{type(fault).__name__}: {fault}"
        found.append(hashlib.sha256(body.encode()).hexdigest())
    return found


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hash(os.urandom(64))


@contextmanager
def load(num_processes: int) -> Iterator[None]:
    burners = [multiprocessing.Process(target=burn, args=(3600.0,), daemon=True) for _ in range(num_processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.terminate()


@pytest.mark.timeout(3000)
def test_a_thousand_requests_twice_in_other_processes_under_load() -> None:
    spawn = multiprocessing.get_context("spawn")
    seeds = range(NUM_REQUESTS)
    with spawn.Pool(2) as pool, load(2):
        first, second = pool.map(digests, [seeds, seeds], chunksize=1)
    differing = [seed for seed in seeds if first[seed] != second[seed]]
    assert not differing
    assert len(set(first)) > NUM_REQUESTS * 0.9
