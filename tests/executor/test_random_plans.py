"""Plans of the real planner on real ranks, against training in one process.

That the comparison notices mistakes is tested by making some on purpose: ``test_deliberate_faults.py``.
"""

from pathlib import Path

import pytest
from random_training import SEED, draw_training, train
from rank_group import run_ranks
from training_reference import differences, train_by_reference

NUM_ITERATIONS = 5
RUNS = {1: 2, 2: 3, 4: 4, 8: 3}
"""Trainings by number of ranks: 60 plans in all."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world_size", RUNS)
def test_any_plans_train_as_one_process_does(world_size: int, tmp_path: Path) -> None:
    """Invariants:

    1. Loss and gradient norm of every iteration are those of training in one process, on every rank.
    2. So are the weights after five steps of AdamW with clipping.
    3. That holds whatever the strategies, which change every iteration: tensor and pipeline parallel, unlike replicas,
       idle ranks, replicas without sequences, tied embeddings, shared key-value heads.
    """
    trainings = [draw_training(world_size, seed, NUM_ITERATIONS) for seed in range(RUNS[world_size])]
    ends = run_ranks(train, world_size, tmp_path, trainings, limit_s=200)
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    for number, training in enumerate(trainings):
        batches = [training.trained_on(iteration) for iteration in range(NUM_ITERATIONS)]
        expected = train_by_reference(training.config, SEED, batches, training.max_norm)
        for rank, end in enumerate(ends):
            strategies = [plan.strategy for plan in training.plans]
            assert differences(end.returned[number], expected) == [], f"run {number}, rank {rank}, {strategies}"
