"""What the server and a solver process say to each other."""

from dataclasses import dataclass, field

from planner_client.contract import Plan, PlanRequest, Profile


@dataclass(frozen=True)
class Job:
    """One request to plan; ``deadline_ms`` counts from the moment the solver starts on it."""

    number: int
    request: PlanRequest
    profiles: tuple[Profile, ...]
    deadline_ms: float


@dataclass(frozen=True)
class Stop:
    """Ask the solver to end this job now."""

    number: int


@dataclass(frozen=True)
class Ready:
    """The planner is imported; jobs may come."""


@dataclass(frozen=True)
class Started:
    """The solver starts on a job."""

    number: int


@dataclass(frozen=True)
class FoundPlan:
    """A complete plan as JSON, with the figures that the server reports on."""

    body: bytes
    digest: str
    makespan_ms: float
    gap: float | None
    planning_ms: float
    cut_by_wall_clock: bool

    @classmethod
    def of(cls, plan: Plan) -> "FoundPlan":
        """Write the plan down."""
        return cls(
            body=plan.model_dump_json().encode(),
            digest=plan.digest,
            makespan_ms=plan.makespan_ms,
            gap=plan.gap,
            planning_ms=plan.planning_ms,
            cut_by_wall_clock=plan.cut_by_wall_clock,
        )


@dataclass(frozen=True)
class Incumbent:
    """The best plan so far, labelled as cut by the wall clock in case it is the one that is answered."""

    number: int
    plan: FoundPlan


@dataclass(frozen=True)
class Finished:
    """The plan."""

    number: int
    plan: FoundPlan


@dataclass(frozen=True)
class Refused:
    """The request cannot be planned as it is: the parts of a `PlanningFault`."""

    number: int
    code: str
    detail: str
    remedy: str
    numbers: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken:
    """The planner raised something it should not have."""

    number: int
    traceback: str


FromServer = Job | Stop
FromSolver = Ready | Started | Incumbent | Finished | Refused | Broken
