"""The last good plan, kept in memory and, where asked for, in a file that a restarted trainer finds."""

import hashlib
import json
import logging
import os
import threading
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

from pydantic import BaseModel, ValidationError

from planner_client.contract import Plan, PlanRequest
from planner_client.fallback import FallbackBasis

FORMAT: Literal[1] = 1
_log = logging.getLogger("planner_client.steady")

_CLUSTER = {"profile", "num_gpus", "devices", "optimizer_layout", "strategies"}
_OPTIONS = {"allowed_layouts", "homogeneous", "tp_inside_node", "max_process_groups", "max_tokens_per_micro_batch"}


class _Kept(BaseModel):
    """What the file holds."""

    format: Literal[1]
    cluster: str
    plan: Plan


def cluster_key(request: PlanRequest) -> str:
    """Return what two requests have in common for which the same strategies and limits hold."""
    content = {
        **request.model_dump(mode="json", include=_CLUSTER),
        "options": request.options.model_dump(mode="json", include=_OPTIONS),
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


class LastGood:
    """Remembers the newest plan that the planner made; threads may share it.

    Parameters
    ----------
    path
        Where it is kept; written whole or not at all. None keeps it in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._known: tuple[str, int, FallbackBasis] | None = None
        self._read: tuple[str, FallbackBasis] | None = None if path is None else _read(path)

    def basis(self, key: str) -> FallbackBasis | None:
        """Return what fallbacks for requests with this key start from; None if nothing is known."""
        with self._lock:
            if self._known is not None and self._known[0] == key:
                return self._known[2]
            if self._read is not None and self._read[0] == key:
                return self._read[1]
            return None

    def keep(self, plan: Plan, key: str, order: int) -> None:
        """Remember a plan of the planner's, unless one of higher order is known; failing to write it is only logged.

        A plan without sequences is passed over: it tells neither times nor which replicas are of use.
        """
        if not plan.num_sequences:
            return
        basis = FallbackBasis.of_plan(plan)
        with self._lock:
            if self._known is not None and order < self._known[1]:
                return
            self._known = (key, order, basis)
        if self._path is None:
            return
        # A disk that hangs holds up whoever writes, and nobody who reads.
        with self._writing:
            with self._lock:
                is_newest = self._known is not None and self._known[1] == order
            if is_newest:
                _write(self._path, plan, key)


def _read(path: Path) -> tuple[str, FallbackBasis] | None:
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        _log.warning("the last good plan in %s cannot be used and is ignored: %s", path, error)
        return None
    return kept.cluster, FallbackBasis.of_plan(kept.plan, f"the plan kept in {path}")


def _write(path: Path, plan: Plan, key: str) -> None:
    content = _Kept(format=FORMAT, cluster=key, plan=plan).model_dump_json()
    temporary: str | None = None
    try:
        with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        _log.warning("the last good plan could not be kept in %s: %s", path, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
