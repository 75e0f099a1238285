"""Write the OpenAPI snapshot and the golden payloads anew: ``python tests/contract/regenerate.py``.

Run it after a deliberate change of the contract, and look at the difference before you commit it.
"""

import json
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from planner_client.contract import (
    FaultCode,
    Histogram,
    IterationTimings,
    PlanRequest,
    Problem,
    ProfileMeasurement,
)
from planner_service.api import create_app
from planner_service.profiles import builtin_profiles
from planner_service.settings import Settings
from planner_service.translate import fit_profile, plan_request

HERE = Path(__file__).parent
SNAPSHOT = HERE / "openapi.json"
GOLDEN = HERE / "golden"

BATCH = {"node-0": [512, 8192, 512, 1024, 30_000, 2048], "node-1": [16_384, 640, 640, 640, 4096]}


def openapi_text() -> str:
    """Write the service's OpenAPI document as it is committed; its version does not count as a change."""
    document = create_app(Settings(database="sqlite://", workers=1)).openapi()
    document["info"]["version"] = "0"
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def golden_values() -> dict[str, BaseModel]:
    """Return one value of each wire type, by the name of its file."""
    profile = builtin_profiles()["llama-32b-a800-80g"]
    request = PlanRequest.model_validate(
        {
            "profile": profile.name,
            "num_gpus": 64,
            "optimizer_layout": {"dp": 4, "tp": 16, "pp": 1},
            "strategies": [[{"tp": 16, "pp": 1, "num_replicas": 1}, {"tp": 8, "pp": 1, "num_replicas": 6}]],
            "iteration": 12,
            "lengths": BATCH,
            "options": {"alignment": 128, "max_length": 25_000, "over_long": "drop", "deadline_ms": 5000},
        }
    )
    started = time.perf_counter()
    plan = plan_request(request, [profile], remaining_ms=lambda: 5000 - 1000 * (time.perf_counter() - started))
    # Times differ from run to run and are not part of the digest.
    plan = plan.model_copy(update={"planning_ms": 12.5})
    measurement = ProfileMeasurement.model_validate(
        {
            "name": "this-machine",
            "source": "measured",
            "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "cpu", "memory_bytes": 8 * 2**30, "gpus_per_node": 2},
            "sync_ms": 1.5,
            "layouts": [{"tp": 1, "cp": 1, "pp": 1, "max_tokens": 8192, "samples": _samples()}],
        }
    )
    timings = {
        "digest": plan.digest,
        "iteration": 12,
        "replicas": [{"replica": 0, "wall_ms": 1200.5, "cpu_ms": 1100.25, "micro_batch_ms": [700.5, 450.0]}],
    }
    problem = {
        "type": f"urn:hydraulis:problem:{FaultCode.SEQUENCE_TOO_LONG}",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "a sequence has 50000 tokens but the largest limit is 43520, of layout (16,1)",
        "code": FaultCode.SEQUENCE_TOO_LONG,
        "remedy": "drop it, or use a layout with a higher limit",
        "length": 50_000,
        "limit": 43_520,
        "layout": "(16,1)",
        "request_id": "0123456789abcdef",
    }
    return {
        "histogram": Histogram.of(BATCH["node-0"]),
        "request": request,
        "plan": plan,
        "profile": fit_profile(measurement),
        "measurement": measurement,
        "timings": IterationTimings.model_validate(timings),
        "problem": Problem.model_validate(problem),
    }


def _samples() -> list[dict[str, Any]]:
    batches = [[64], [512], [1024, 1024], [4096], [2048, 17, 900], [300] * 10]
    noise = [1.01, 0.99, 1.0, 1.02, 0.98, 1.0]
    return [
        {"lengths": lengths, "time_ms": round(factor * (3 + sum(2e-6 * s * s + 0.004 * s for s in lengths)), 4)}
        for lengths, factor in zip(batches, noise, strict=True)
    ]


def main() -> None:
    """Write all files."""
    SNAPSHOT.write_text(openapi_text())
    GOLDEN.mkdir(exist_ok=True)
    for name, value in golden_values().items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(value.model_dump(mode="json"), indent=1) + "\n")


if __name__ == "__main__":
    main()
