"""What torchrun starts: a run against a planner that ends well, or one whose second rank dies.

Arguments: planner's address, folder for what is written, and what happens (``well`` or ``killed``).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from training_runs import PROFILE, dataset, train, trainer

from worker_agent.trainer.same_data import sampled_indices
from worker_agent.trainer.settings import CheckpointSettings, EvaluationSettings, ReportSettings


class KillsItsReader:
    """Data that kills the process that reads some sequence in the middle of the second epoch."""

    def __init__(self) -> None:
        self._sequences = dataset()
        self._num_read = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._num_read += 1
        num_compared = len(sampled_indices(self._sequences))
        if os.environ["RANK"] == "1" and self._num_read - num_compared > 3 * len(self._sequences) // 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._sequences[index]


def main(url: str, folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    with trainer(
        data=dataset() if what == "well" else KillsItsReader(),
        planner_url=url,
        profile=PROFILE,
        checkpoints=CheckpointSettings(folder / "checkpoints", every_iterations=2, keep=3),
        evaluation=EvaluationSettings(dataset([5, 9, 33]), every_iterations=3),
        reports=ReportSettings(json_lines=folder / "metrics.jsonl"),
    ) as run:
        run.train()
        run.save_hugging_face(folder / "model", dtype=torch.float64, max_position_embeddings=64)
    if what == "well":
        # One trainer after the other in the same processes, each in a group of its own.
        ends = []
        for _ in range(3):
            # The other rank is early, and must not take the addresses of the group before for those of its own.
            time.sleep(0.3 if os.environ["RANK"] == "0" else 0)
            ends.append(train(((2, 1),), num_iterations=1, collective_timeout_s=46.0)["last"].loss)
        (folder / f"in-turn-{os.environ['RANK']}.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
