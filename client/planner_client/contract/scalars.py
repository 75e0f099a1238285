"""The constrained numbers and names that every wire type is built from."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticKnownError

from planner_client.contract.described import Described

MAX_LENGTH_TOKENS = 2**31 - 1
"""Longest sequence, in tokens: ``cu_seqlens`` are int32 in every varlen attention kernel."""

MAX_COUNT = 10**9
"""Most sequences of one length in one histogram."""

MAX_DISTINCT_LENGTHS = 200_000
"""Most distinct lengths in one histogram."""

MAX_SEQUENCES_LISTED = 1_000_000
"""Most sequences in one list of lengths; a larger batch is sent as a histogram."""

MAX_SOURCES = 65_536
MAX_GPUS = 131_072
MAX_DEGREE = 4_096
MAX_STRATEGIES = 256
MAX_DEADLINE_MS = 600_000
MAX_DEVICE_POOLS = 64
MAX_ATOMIC_GROUPS = 100_000
MAX_MICRO_BATCHES_TIMED = 1_000_000
"""Most measured times of one replica."""

MAX_COEFFICIENT = 1e6
"""Largest cost of a micro-batch, a token or a token squared (ms)."""

MAX_ITERATION = 2**53
MAX_WAIT_MS = 600_000
"""Longest wait that a caller can ask for."""

MAX_JOB_PATTERNS = 256
MAX_TOKEN_LIFETIME_S = 36_500 * 86_400


def _refuse_bool(value: Any) -> Any:
    """JSON ``true`` is not the number 1 (strict integers refuse it by themselves)."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")  # noqa: TRY004 - pydantic turns only ValueError into a refusal
    return value


def _negligible_is_zero(value: float) -> float:
    """Keep subnormal numbers out of divisions."""
    return value if value >= 1e-20 else 0.0


def _refuse_many_entries(value: Any) -> Any:
    """Count before each is looked at: what is wrong with a million entries takes seconds and gigabytes to note."""
    if isinstance(value, dict) and len(value) > MAX_SOURCES:
        raise PydanticKnownError(
            "too_long", {"field_type": "Dictionary", "max_length": MAX_SOURCES, "actual_length": len(value)}
        )
    return value


_NotBool = BeforeValidator(_refuse_bool)
FewEntries = BeforeValidator(_refuse_many_entries)
"""Marks an object whose names a caller chooses; it has at most as many entries as a batch may have sources."""

LengthTokens = Annotated[int, Field(ge=1, le=MAX_LENGTH_TOKENS, strict=True)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53, strict=True)]
PositiveInt = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE, strict=True)]
NumGpus = Annotated[int, Field(ge=1, le=MAX_GPUS, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False), _NotBool]
PositiveFloat = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False), _NotBool]
MeasuredMs = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False), _NotBool]
"""A measured time (ms); what is added up or divided of such ones stays finite."""
Coefficient = Annotated[
    float, Field(ge=0, le=MAX_COEFFICIENT, allow_inf_nan=False), _NotBool, AfterValidator(_negligible_is_zero)
]
"""Cost of a micro-batch, a token or a token squared, in ms; what is below 1e-20 is taken for 0."""
SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
JobName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
TokenName = JobName
ProfileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class Sent(Described):
    """Base of what a caller sends: unknown fields are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Returned(Described):
    """Base of what the planner returns: readers ignore fields they do not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)
