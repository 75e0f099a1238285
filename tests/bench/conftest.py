"""Benches start servers as the service's tests do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "service"))
