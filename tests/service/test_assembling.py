"""Reports that are looked at before they are kept: whom a refusal names, and what many sources cost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_client.contract import AtomicGroup, Histogram, JobSpec, SourceBatch
from planner_service.core.faults import PlanningFault
from planner_service.jobs.assemble import refuse_unfit

FIT = [SourceBatch(lengths=[5, 7]), SourceBatch(lengths=[]), SourceBatch(histogram=Histogram(lengths=[5], counts=[2]))]
IN_ORDER = FIT[:2]
UNHELD = SourceBatch(lengths=[5], atomic_groups=[AtomicGroup(lengths=[5, 7])])


def spec(num_sources: int, method: str = "hydraulis") -> JobSpec:
    sources = [f"n{number}" for number in range(num_sources)]
    fields = {"name": "j", "profile": "p", "num_gpus": 8, "sources": sources, "options": {"method": method}}
    return JobSpec.model_validate(fields)


@given(at=st.integers(0, 6), others=st.lists(st.sampled_from(FIT), min_size=6, max_size=6))
def test_a_report_that_no_plan_could_honour_is_refused_by_the_name_of_its_source(
    at: int, others: list[SourceBatch]
) -> None:
    job = spec(7)
    batches = dict(zip(job.sources, [*others[:at], UNHELD, *others[at:]], strict=True))
    with pytest.raises(PlanningFault, match=f"source n{at}: atomic_groups of source n{at}"):
        refuse_unfit(job, frozenset(job.sources), batches)
    refuse_unfit(job, frozenset(job.sources), {**batches, f"n{at}": FIT[0]})


def test_a_source_that_the_job_has_not_is_named_before_anything_is_wrong_with_it() -> None:
    job = spec(2)
    with pytest.raises(PlanningFault, match="job j has no source n7"):
        refuse_unfit(job, frozenset(job.sources), {"n7": UNHELD})


def test_a_histogram_is_refused_alone_where_the_method_needs_an_order() -> None:
    job = spec(2, method="plain")
    refuse_unfit(job, frozenset(job.sources), dict(zip(job.sources, IN_ORDER, strict=True)))
    with pytest.raises(PlanningFault, match="source n1: method plain needs the order"):
        refuse_unfit(job, frozenset(job.sources), {"n0": FIT[0], "n1": FIT[2]})


def test_ten_thousand_sources_take_hardly_longer_than_reading_them() -> None:
    job = spec(10_000)
    body = {"sources": {source: {"lengths": [5, 7]} for source in job.sources}}
    began_at = time.process_time()
    batches = {source: SourceBatch.model_validate(batch) for source, batch in body["sources"].items()}
    read_s = time.process_time() - began_at
    refuse_unfit(job, frozenset(job.sources), batches)
    assert time.process_time() - began_at - read_s < 5 * read_s
