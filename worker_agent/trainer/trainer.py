"""Trains a decoder on variable-length sequences, each iteration by a plan of its own."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from planner_client.contract import LearningMode, PlanOptions, Profile, ReplicaGroup
from worker_agent.executor.collectives import gather_values
from worker_agent.executor.faults import ExecutionFault, RankLost
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState
from worker_agent.trainer.advice import stopped
from worker_agent.trainer.checkpoint import CheckpointWriter
from worker_agent.trainer.checkpoint_shards import checkpoint_shards, take_over
from worker_agent.trainer.evaluation import mean_token_loss
from worker_agent.trainer.faults import CheckpointRefused
from worker_agent.trainer.hugging_face import read_config, read_weights, write_model
from worker_agent.trainer.loader import BatchLoader
from worker_agent.trainer.lookahead import ITERATIONS_AHEAD, Lookahead
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.optimizer import (
    make_optimizer,
    make_schedule,
    restore_schedule,
    schedule_document,
    step_schedule,
)
from worker_agent.trainer.planning import MakePlan, PlanFeed, agent_of, planner_of
from worker_agent.trainer.process_group import join_process_group
from worker_agent.trainer.progress import DataOrder, Progress
from worker_agent.trainer.reporting import Reporter
from worker_agent.trainer.resume import Resumed, resume
from worker_agent.trainer.same_arguments import refuse_unlike
from worker_agent.trainer.same_data import refuse_unlike_data
from worker_agent.trainer.settings import (
    BatchLimit,
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    ReportSettings,
    RunLength,
    ScheduleSettings,
    refuse_bad_seed,
)
from worker_agent.trainer.settled import settled
from worker_agent.trainer.stop_signal import StopWish, stop_wish


class Trainer:
    """Trains a decoder by plans; every rank builds one with the same arguments, under torchrun or alone.

    An iteration is one optimizer step on one global batch, cut from the data by a budget of tokens or sequences. That
    budget is what other trainers reach by accumulating gradients: the plan cuts the batch into as many micro-batches
    as memory asks for.

    Parameters
    ----------
    model
        The decoder's shape, for new weights, or a folder with a Hugging Face Llama model.
    data
        Flat integer tensors of token ids, one for each sequence: something with ``len(data)`` and ``data[index]``,
        which is shuffled, or any iterable, which is read in its order. The same on every rank; each takes its part.
    num_iterations, num_epochs
        When the run ends, whichever comes first; a resumed run counts on.
    tokens_per_iteration, sequences_per_iteration
        Most tokens, and most sequences, of a global batch.
    planner_url, profile, strategies, plan_options
        The planner to ask, what the model costs (a profile's name, or a profile), candidate strategies such as
        ``"(2,1)x1,(1,1)x2"`` (none: all are searched), and constraints.
    plan_timeout_s, plan_window
        Most time that training waits for one plan, after which it runs by one made without the planner; and how many
        iterations ahead plans are asked for.
    token, ca_file
        What the planner asks for, and certificates to trust instead of the public ones; by default
        ``HYDRAULIS_TOKEN`` and ``HYDRAULIS_CA_FILE`` of rank 0.
    job
        Name of the job that the run is registered as, so that the planner keeps its plans and measured times.
    learning
        What the planner does with measured times of the job: ``off``, ``observe`` (it shows what it learned), or ``on``
        (it plans with it).
    agent
        In place of the planner's address, that of the agent on each rank's node (`hydraulis agent`):
        ``unix:/run/hydraulis/agent.sock`` or ``http://127.0.0.1:8471``; by default ``HYDRAULIS_AGENT_SOCKET``, where
        neither ``planner_url`` nor ``plans`` is given. It has the token; the job is ``job``, or the one that agents
        were started for.
    plans
        In place of a planner: a function of a batch's lengths by source that makes the plan. Called on rank 0 in
        another thread than the one that trains, never twice at once; also for evaluation, in between.
    optimizer, schedule, checkpoints, evaluation, reports
        See their classes in `worker_agent.trainer.settings`.
    seed
        Of new weights and of the order of the data.
    shuffle
        Whether indexed data is shuffled.
    dtype
        Of the master weights and the optimizer's moments.
    compute_dtype
        Of computation; that of the masters if not given.
    collective_timeout_s
        Most time that a rank waits for another.

    Raises
    ------
    ValueError
        If arguments are missing, contradict one another or are out of range.
    CheckpointRefused
        If the run cannot begin where it is told to.
    worker_agent.executor.faults.IterationFailed
        On every rank, if the model or a checkpoint cannot be read.
    worker_agent.executor.faults.RankLost
        If the ranks do not all meet, or one is lost, within ``collective_timeout_s``.
    """

    def __init__(  # noqa: PLR0913 - one argument for each thing a run's owner decides
        self,
        model: DecoderConfig | Path | str,
        data: Any,
        *,
        num_iterations: int | None = None,
        num_epochs: int | None = None,
        tokens_per_iteration: int | None = None,
        sequences_per_iteration: int | None = None,
        planner_url: str | None = None,
        profile: Profile | str | None = None,
        strategies: Sequence[str | Sequence[ReplicaGroup]] = (),
        plan_options: PlanOptions | None = None,
        plan_timeout_s: float | None = None,
        plan_window: int = ITERATIONS_AHEAD,
        token: str | None = None,
        ca_file: Path | str | None = None,
        job: str | None = None,
        learning: LearningMode = "observe",
        agent: str | None = None,
        plans: MakePlan | None = None,
        optimizer: OptimizerSettings | None = None,
        schedule: ScheduleSettings | None = None,
        checkpoints: CheckpointSettings | None = None,
        evaluation: EvaluationSettings | None = None,
        reports: ReportSettings | None = None,
        seed: int = 0,
        shuffle: bool = True,
        dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        collective_timeout_s: float = 600.0,
    ) -> None:
        self._length = RunLength(num_iterations, num_epochs)
        self._limit = BatchLimit(tokens_per_iteration, sequences_per_iteration)
        agent = agent_of(agent, planner_url, plans)
        self._planner = planner_of(
            planner_url,
            plans,
            agent=agent,
            profile=profile,
            strategies=strategies,
            options=plan_options,
            timeout_s=plan_timeout_s,
            token=token,
            ca_file=ca_file,
            job=job,
            learning=learning,
            window=plan_window,
            folder=None if checkpoints is None else checkpoints.path,
            collective_timeout_s=collective_timeout_s,
        )
        self._window = plan_window
        self._optimizer_settings = optimizer or OptimizerSettings()
        self._schedule_settings = schedule or ScheduleSettings()
        self._checkpoints = checkpoints
        self._evaluation = evaluation
        self._reports = reports or ReportSettings()
        self._data, self._shuffle = data, shuffle
        self._base_folder = None if isinstance(model, DecoderConfig) else Path(model)
        self._config = model if isinstance(model, DecoderConfig) else read_config(model)
        refuse_bad_seed(seed)
        self._progress = Progress()
        self._is_closed = self._was_stopped = False
        self._last_checkpoint: Path | None = None
        self._owns_group = join_process_group(collective_timeout_s)
        try:
            refuse_unlike(
                {
                    "model": self._config,
                    "model weights": "new" if self._base_folder is None else "of a folder",
                    "data": data,
                    "num_iterations": num_iterations,
                    "num_epochs": num_epochs,
                    "tokens_per_iteration": tokens_per_iteration,
                    "sequences_per_iteration": sequences_per_iteration,
                    "planner_url": planner_url,
                    # Each node may have its own address.
                    "agent": "none" if agent is None else "given",
                    "profile": profile,
                    "strategies": strategies,
                    "plan_options": plan_options,
                    "plan_timeout_s": plan_timeout_s,
                    "plan_window": plan_window,
                    "job": job,
                    "learning": learning,
                    "plans": plans,
                    "optimizer": self._optimizer_settings,
                    "schedule": self._schedule_settings,
                    "checkpoints": checkpoints,
                    "evaluation": evaluation,
                    "seed": seed,
                    "shuffle": shuffle,
                    "dtype": dtype,
                    "compute_dtype": compute_dtype,
                    "collective_timeout_s": collective_timeout_s,
                }
            )
            refuse_unlike_data(data, "data")
            if evaluation is not None:
                refuse_unlike_data(evaluation.data, "evaluation data")
            self._build(seed, dtype, compute_dtype)
        except BaseException:
            self._leave_group()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def config(self) -> DecoderConfig:
        """The decoder's shape."""
        return self._config

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this rank's shard."""
        return self._state.optimizer

    @property
    def progress(self) -> Progress:
        """How far the run has come, iterations before a resumption included."""
        return self._progress

    @property
    def last_checkpoint(self) -> Path | None:
        """The checkpoint written or resumed from last."""
        return self._last_checkpoint

    @property
    def was_stopped(self) -> bool:
        """Whether `train` returned because a signal asked for it, on any rank, and not because the run is over."""
        return self._was_stopped

    def train(self) -> IterationMetrics | None:
        """Train until the run's end; a collective that every rank calls.

        On SIGTERM, or Ctrl-C once, the run ends after the iteration in progress, with a checkpoint if it has a folder
        for them; `was_stopped` tells.

        Returns
        -------
        IterationMetrics or None
            Of the last iteration; None if the run was at its end already.

        Raises
        ------
        TrainingStopped
            If an iteration could not be run; it names the iteration, the cause, and from where to go on.
        """
        self._refuse_closed()
        metrics: IterationMetrics | None = None
        try:
            with ExitStack() as stack:
                reporter = self._open_reporter(stack)
                feed = stack.enter_context(PlanFeed(self._planner))
                wish = stack.enter_context(stop_wish())
                ahead = Lookahead(self._loader(), feed, self._runner, self._length.is_over, self._window)
                while not self._is_over():
                    metrics, is_stopped = self._iterate(ahead, feed, wish)
                    with self._saved_first(), settled(f"reporting iteration {metrics.iteration}"):
                        reporter.report(metrics)
                    self._was_stopped = is_stopped
                    if is_stopped:
                        reporter.say(f"stopped by a signal after {self._progress.num_iterations} iterations")
                        break
        except ExecutionFault as fault:
            raise stopped(fault, self._progress.num_iterations, self._last_checkpoint, self._checkpoints) from fault
        return metrics

    def evaluate(self, data: Any = None) -> float:
        """Return the mean token loss (nats) over data, without a step; a collective that every rank calls.

        Parameters
        ----------
        data
            Sequences, as for training; by default those of the evaluation settings.

        Raises
        ------
        ValueError
            If there is no data, none of it predicts a token, or ranks were given different data.
        worker_agent.executor.faults.ExecutionFault
            If a batch could not be planned or run.
        """
        self._refuse_closed()
        if data is None:
            if self._evaluation is None:
                raise ValueError("there is no data to evaluate; give evaluate(data), or evaluation=")
            data = self._evaluation.data
        else:
            refuse_unlike({"evaluation data": data})
            refuse_unlike_data(data, "evaluation data")
        return mean_token_loss(self._runner, self._planner, data, self._limit, self._config.vocab_size)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by the decoder's names, on every rank; a collective that every rank calls."""
        self._refuse_closed()
        return self._state.gathered()

    def save_checkpoint(self) -> Path:
        """Write a checkpoint now; a collective that every rank calls.

        Raises
        ------
        CheckpointRefused
            If the run has no folder for checkpoints.
        worker_agent.executor.faults.IterationFailed
            On every rank, if it cannot be written.
        """
        self._refuse_closed()
        if self._writer is None:
            raise CheckpointRefused("the run has no folder for checkpoints; give checkpoints=CheckpointSettings(...)")
        schedule = schedule_document(self._state.optimizer, self._scheduler, self._schedule_begun)
        self._last_checkpoint = self._writer.save(checkpoint_shards(self._state), schedule, self._progress)
        return self._last_checkpoint

    def save_hugging_face(
        self, directory: Path | str, *, dtype: torch.dtype = torch.float32, max_position_embeddings: int | None = None
    ) -> None:
        """Write the model as a Hugging Face Llama model; a collective that every rank calls.

        A model that came from such a folder takes its tokenizer and further ``config.json`` entries along.

        Parameters
        ----------
        directory
            Folder; made if needed.
        dtype
            Type to store the weights in.
        max_position_embeddings
            Longest sequence the model was trained on (tokens); by default that of the folder it came from, or 2048.

        Raises
        ------
        worker_agent.executor.faults.IterationFailed
            On every rank, if it cannot be written.
        """
        weights = self.weights()
        with settled(f"writing the model to {directory}"):
            if self._leads:
                write_model(
                    directory,
                    self._config,
                    weights,
                    dtype=dtype,
                    max_position_embeddings=max_position_embeddings,
                    like=self._base_folder,
                )

    def close(self) -> None:
        """Free what the run holds, and leave the process group if the trainer joined it; once is enough."""
        if not self._is_closed:
            self._is_closed = True
            self._planner.close()
            self._runner.close()
            self._leave_group()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the trainer is closed; build a new one, which goes on from the newest checkpoint")

    def _build(self, seed: int, dtype: torch.dtype, compute_dtype: torch.dtype | None) -> None:
        self._leads = dist.get_rank() == 0
        self._state = ShardedState(
            self._config,
            seed=seed,
            dtype=dtype,
            make_optimizer=lambda groups: make_optimizer(groups, self._optimizer_settings),
        )
        with settled("looking at the data"):
            order = DataOrder.of(self._data, seed, shuffle=self._shuffle)
        self._progress = Progress(order=order)
        self._writer, resumed = None, None
        if self._checkpoints is not None:
            self._writer = CheckpointWriter(
                self._checkpoints.path, self._config, self._state.table.num_elements, keep=self._checkpoints.keep
            )
            resumed = self._resume(self._writer, self._checkpoints)
            self._writer.try_folder()
        if resumed is None and self._base_folder is not None:
            with settled(f"reading the model in {self._base_folder}"):
                self._state.load(read_weights(self._base_folder, self._config))
        self._scheduler = make_schedule(
            self._state.optimizer,
            self._schedule_settings,
            self._length.iterations,
            begun_at=self._progress.num_iterations,
        )
        self._schedule_begun = schedule_document(self._state.optimizer, self._scheduler)
        # What a function makes can be compared only now: by name it is the same on all ranks.
        refuse_unlike({"optimizer and schedule as made": self._schedule_begun})
        if resumed is not None:
            with settled("going on with the schedule"):
                self._schedule_begun = restore_schedule(
                    self._state.optimizer,
                    self._scheduler,
                    self._schedule_settings,
                    resumed.schedule,
                    warns=self._leads,
                )
        self._runner = IterationRunner(
            self._state, compute_dtype=compute_dtype, max_norm=self._optimizer_settings.max_norm
        )

    def _resume(self, writer: CheckpointWriter, settings: CheckpointSettings) -> Resumed | None:
        shards = checkpoint_shards(self._state)
        resumed = resume(writer, settings, shards, self._progress.order)
        if resumed is not None:
            take_over(self._state, shards)
            # Seed and shuffling are the run's, but its data may have grown.
            self._progress = replace(resumed.progress, order=self._progress.order)
            self._last_checkpoint = resumed.checkpoint
        return resumed

    @contextmanager
    def _saved_first(self) -> Iterator[None]:
        """Before a fault that all ranks have between two iterations ends the run, write a checkpoint of what is done.

        The state is whole then, and nothing of it need be lost to a bad sequence or a planner that is away.
        """
        try:
            yield
        except RankLost:
            raise
        except ExecutionFault as fault:
            done = self._progress.num_iterations
            if self._writer is not None and self._last_checkpoint != self._writer.path_of(done):
                try:
                    self.save_checkpoint()
                except ExecutionFault as unwritten:
                    fault.add_note(f"nor could a checkpoint be written: {unwritten}")
            raise

    def _leave_group(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def _open_reporter(self, stack: ExitStack) -> Reporter:
        """Open the report on the rank that reports; where it cannot, every rank hears of it."""
        begun_at = self._progress.num_iterations
        reporter = Reporter(
            self._reports, reports=self._leads, num_iterations=self._length.iterations, begun_at=begun_at
        )
        stack.callback(reporter.close)
        with settled("opening the report"):
            reporter.open()
        return reporter

    def _loader(self) -> BatchLoader:
        return BatchLoader(
            self._data,
            self._limit,
            seed=self._progress.order.seed,
            shuffle=self._shuffle,
            position=self._progress.position,
            vocab_size=self._config.vocab_size,
        )

    def _is_over(self) -> bool:
        return self._length.is_over(self._progress.num_iterations, self._progress.position.epoch)

    def _iterate(self, ahead: Lookahead, feed: PlanFeed, wish: StopWish) -> tuple[IterationMetrics, bool]:
        """Run one iteration; return its metrics, and whether somebody wants the run to stop."""
        started = time.perf_counter()
        iteration = self._progress.num_iterations
        with self._saved_first():
            batch, taken = ahead.take(iteration)
        rate = float(self._state.optimizer.param_groups[0]["lr"])
        result = self._runner.run(taken.plan, batch.held)
        step_schedule(self._scheduler, result.loss)
        wall_ms = 1000 * (time.perf_counter() - started)
        feed.report(iteration, taken.made, result.timing)
        by_rank = gather_values(
            [result.compute_ms, float(wish.is_there)], None, f"comparing the times of iteration {iteration}"
        )
        self._progress = replace(
            self._progress, num_iterations=iteration + 1, position=batch.after, plan_digest=taken.made.digest
        )
        metrics = IterationMetrics.of_plan(
            taken.made,
            iteration=iteration,
            epoch=batch.epoch,
            loss=result.loss,
            learning_rate=rate,
            grad_norm=result.grad_norm,
            wall_ms=wall_ms,
            compute_ms=[compute_ms for compute_ms, _ in by_rank],
            plan_origin=taken.origin,
            fetch_ms=taken.fetch_ms,
            waited_ms=taken.waited_ms,
        )
        is_stopped = any(wanted for _, wanted in by_rank)
        return self._conclude(metrics, is_last=is_stopped or self._is_over()), is_stopped

    def _conclude(self, metrics: IterationMetrics, *, is_last: bool) -> IterationMetrics:
        """Evaluate and write a checkpoint where the iteration is one for that."""
        done = self._progress.num_iterations
        if self._evaluation is not None and done % self._evaluation.every_iterations == 0:
            metrics = replace(metrics, evaluation_loss=self.evaluate())
        if self._checkpoints is not None and (is_last or done % self._checkpoints.every_iterations == 0):
            self.save_checkpoint()
        return metrics
