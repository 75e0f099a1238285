"""What tests of the agent share with those they come from."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("sequences", "service", "executor", "trainer", "client", "agent")]
