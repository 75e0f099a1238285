"""Lists of jobs: what they cost, and what they tell."""

import asyncio
from collections.abc import Iterator

import pytest

from planner_client.contract import JobList, JobSpec
from planner_service.desk.canonical import canonical_json
from planner_service.desk.catalog import Catalog
from planner_service.desk.metrics import Metrics
from planner_service.jobs import Congestion, CrowdLimits, JobDesk, JobLimits, Learner, Waiters
from planner_service.pool import PoolLimits, SolverPool
from planner_service.profiles import builtin_profiles
from planner_service.store import JobRow, ReportTerms, SqlStore, StoreUse

PROFILE = "llama-7b-a100-40g"


@pytest.fixture
def store() -> Iterator[SqlStore]:
    opened = SqlStore("sqlite://")
    yield opened
    opened.close()


def register(store: SqlStore, **fields: object) -> JobSpec:
    spec = JobSpec.model_validate({"profile": PROFILE, "num_gpus": 8, "sources": ["s"], **fields})
    store.jobs.put(JobRow(spec.name, canonical_json(spec)))
    return spec


def page(store: SqlStore, limit: int = 1000) -> JobList:
    pool = SolverPool(PoolLimits(1, 1, 1.0, 1, 1.0, 2**30))
    metrics = Metrics(pool, num_long_polls=lambda: 0, version="0")
    catalog = Catalog(store, builtin_profiles())
    desk = JobDesk(
        store=store,
        catalog=catalog,
        waiters=Waiters(1),
        metrics=metrics,
        learner=Learner(store=store, catalog=catalog, metrics=metrics),
        limits=JobLimits(1, CrowdLimits(max_waiting=1, max_wait_ms=1.0)),
        congestion=Congestion(),
    )
    return asyncio.run(desk.page(after="", limit=limit))


def test_a_page_of_jobs_takes_as_many_looks_at_the_database_as_one_job_does(store: SqlStore) -> None:
    looks: list[StoreUse] = []
    store.watch(looks.append)
    numbers = []
    for num_jobs in (1, 40):
        for number in range(num_jobs):
            register(store, name=f"job-{num_jobs}-{number}")
        looks.clear()
        assert len(page(store).jobs) == num_jobs + (num_jobs > 1)
        numbers.append(len(looks))
    assert numbers[0] == numbers[1] <= 3


def test_a_list_tells_of_a_job_what_its_spec_says(store: SqlStore) -> None:
    builtin = builtin_profiles()
    inline = builtin[PROFILE].model_copy(update={"name": "my-own"})
    pools = [{"profile": "llama-7b-a800-80g", "num_gpus": 16}, {"profile": inline.model_dump(), "num_gpus": 4}]
    specs = {
        "devices": register(store, name="devices", profile=None, num_gpus=None, devices=pools),
        "inline": register(store, name="inline", profile=inline.model_dump()),
        "named": register(store, name="named", sources=["a", "b", "c"]),
    }
    store.jobs.report("named", 4, {"a": b"{}"}, ReportTerms(num_expected=3, wait_s=9.0, max_open=9))
    listed = {job.name: job for job in page(store).jobs}
    assert listed.keys() == specs.keys()
    for name, spec in specs.items():
        job = listed[name]
        assert (job.profiles, job.num_gpus, job.num_sources) == (
            spec.profile_names,
            spec.total_gpus,
            len(spec.sources),
        )
    assert listed["devices"].profiles == "llama-7b-a800-80g+my-own"
    assert (listed["named"].num_iterations, listed["named"].last_iteration) == (1, 4)
