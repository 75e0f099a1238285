"""One demo run from start to end: serve, profile, train, report."""

import tempfile
import time
from pathlib import Path

from planner_client.client import PlannerClient
from planner_client.contract import Profile
from worker_agent.demo.changing import ChangingRecord, ChangingRun, changing_max_length, estimated_profile
from worker_agent.demo.changing_training import ChangingJob, train_changing_rank
from worker_agent.demo.corpus import Corpus, read_corpus
from worker_agent.demo.outcome import FittedLayout, IterationRecord, Outcome, held_out_error_pct
from worker_agent.demo.progress import DemoDisplay
from worker_agent.demo.report import write_report
from worker_agent.demo.service_process import running_service
from worker_agent.demo.settings import PROFILE_NAME, DemoSettings
from worker_agent.demo.training import TrainingJob, decoder_config, train_rank
from worker_agent.local_ranks import run_on_local_ranks
from worker_agent.profiler import MeasuringProgress, ProfilingSettings, measure, split_held_out

_PROFILING_TIMEOUT_S = 600.0
_ITERATION_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 120.0


def corpus_for(settings: DemoSettings) -> Corpus:
    """Read the corpus of a run.

    Raises
    ------
    ValueError
        If it is too small for the settings.
    """
    corpus = read_corpus(settings.max_length)
    if len(corpus.sequences) < settings.num_sequences:
        raise ValueError(
            f"--sequences is {settings.num_sequences} but the corpus has {len(corpus.sequences)} sequences; ask for "
            "fewer or raise --max-length"
        )
    return corpus


def run_demo(settings: DemoSettings, corpus: Corpus, display: DemoDisplay) -> Outcome:
    """Run the demo and write its report.

    Raises
    ------
    worker_agent.demo.service_process.ServiceUnavailable
        If the planner cannot be started.
    planner_client.errors.HydraulisError
        If the planner refuses the profile.
    worker_agent.local_ranks.RanksFailed
        If profiling or training fails on a rank.
    OSError
        If the report cannot be written.
    """
    started = time.monotonic()
    display.say(f"corpus: {corpus.describe()}")
    with tempfile.TemporaryDirectory(prefix="hydraulis-demo-") as directory:
        display.say("starting the planner ...")
        with running_service(Path(directory) / "planner.sqlite3") as planner_url:
            display.say(f"planner listens on {planner_url}")
            profile, fit = _profile(settings, planner_url, display)
            records = _train(settings, corpus, planner_url, display)
            changing = _train_changing(settings, corpus, planner_url, profile, display)
    outcome = Outcome(
        settings=settings.as_values(),
        corpus=corpus,
        profile=fit,
        records=tuple(records),
        changing=changing,
        elapsed_s=time.monotonic() - started,
    )
    write_report(outcome, settings.report)
    return outcome


def _profile(settings: DemoSettings, planner_url: str, display: DemoDisplay) -> tuple[Profile, FittedLayout]:
    """Measure this machine, let the service fit its cost model, and check that on samples it never saw."""
    display.say(f"profiling this machine with {settings.num_ranks} processes at once ...")
    to_measure = ProfilingSettings(
        name=PROFILE_NAME,
        config=decoder_config(settings),
        max_tokens=settings.max_length,
        max_length=settings.max_length,
        num_ranks=settings.num_ranks,
        num_packings=settings.profile_packings,
        num_repeats=settings.profile_repeats,
        clock="cpu",  # the planner and whatever else runs on this machine take their share of it
        seed=settings.seed,
        timeout_s=_PROFILING_TIMEOUT_S,
    )
    with display.bar("micro-batches measured", settings.profile_packings * settings.profile_repeats) as bar:

        def show(progress: MeasuringProgress) -> None:
            bar.move_to(progress.done)

        measurement = measure(to_measure, show)
    to_fit, (held_out,) = split_held_out(measurement)
    with PlannerClient(planner_url) as client:
        profile = client.register_profile(to_fit)
    fit = _fitted(profile, held_out_error_pct(profile.layouts[0], held_out), len(held_out), settings.max_length)
    display.show_fit(fit)
    return profile, fit


def _fitted(profile: Profile, held_out_pct: float, num_held_out: int, max_tokens: int) -> FittedLayout:
    cost = profile.layouts[0]
    if cost.fit is None:
        raise ValueError(f"the planner kept no error with the fit of profile {profile.name!r}, so it cannot be shown")
    return FittedLayout(
        profile=profile.name,
        a_ms_per_token2=cost.a_ms_per_token2,
        b_ms_per_token=cost.b_ms_per_token,
        c_ms=cost.c_ms,
        sync_ms=profile.sync_ms,
        max_tokens=cost.max_tokens or max_tokens,
        num_samples=cost.fit.num_samples,
        r2=cost.fit.r2,
        median_abs_pct_error=cost.fit.median_abs_pct_error,
        num_held_out=num_held_out,
        held_out_median_abs_pct_error=held_out_pct,
    )


def _train(settings: DemoSettings, corpus: Corpus, planner_url: str, display: DemoDisplay) -> list[IterationRecord]:
    display.say(
        f"training {settings.iterations} iterations of {settings.num_sequences} sequences twice, plain and planned, "
        f"on {settings.num_ranks} ranks ..."
    )
    records: list[IterationRecord] = []
    with display.bar("iterations", settings.iterations) as bar:

        def show(record: IterationRecord) -> None:
            records.append(record)
            if display.show_iteration(record):
                bar.advance()

        run_on_local_ranks(
            train_rank,
            TrainingJob(settings, corpus, planner_url, PROFILE_NAME),
            num_ranks=settings.num_ranks,
            timeout_s=_START_TIMEOUT_S + settings.iterations * _ITERATION_TIMEOUT_S,
            on_event=show,
        )
    return records


def _train_changing(
    settings: DemoSettings, corpus: Corpus, planner_url: str, measured: Profile, display: DemoDisplay
) -> ChangingRun:
    num_iterations = len(settings.strategies)
    display.say(
        f"training {num_iterations} iterations on {settings.changing_ranks} ranks, each by another strategy, and the "
        "same batches by one process alone; what the layouts cost is estimated from (1,1) ..."
    )
    profile = estimated_profile(measured, settings)
    records: list[ChangingRecord] = []
    with display.bar("iterations", num_iterations) as bar:

        def show(record: ChangingRecord) -> None:
            records.append(record)
            display.show_changing(record)
            bar.advance()

        run_on_local_ranks(
            train_changing_rank,
            ChangingJob(settings, corpus, planner_url, profile),
            num_ranks=settings.changing_ranks,
            timeout_s=_START_TIMEOUT_S + num_iterations * _ITERATION_TIMEOUT_S,
            on_event=show,
        )
    return ChangingRun(
        profile_source=profile.source,
        num_ranks=settings.changing_ranks,
        max_length=changing_max_length(settings),
        records=tuple(records),
    )
