import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Plans made by hand are shared with the tests of their resolution; spawned ranks inherit the path.
sys.path.insert(0, str(Path(__file__).parents[1] / "sequences"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep tiny tensors from waiting for threads on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
