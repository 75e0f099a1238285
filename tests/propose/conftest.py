import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))  # the core's cases serve here too
