"""How ranks come to act as one: the same plan on all, or the same fault on all."""

import hashlib
import json
from collections.abc import Mapping

import torch
import torch.distributed as dist

from planner_client.contract import Plan
from worker_agent.executor.collectives import Group, collective_device, gather_bytes, rank_loss_named
from worker_agent.executor.faults import IterationFailed, PlanDisagreement, PlanningFailed, text_of

MAX_FAULT_BYTES = 2048
"""Most bytes of one rank's fault that travel to the others."""

_DIGEST_BYTES = 32
_PLAN, _FAULT = 0, 1


def share_plan(plan_or_fault: Plan | Exception | None = None, *, group: Group = None, decider: int = 0) -> Plan:
    """Give all ranks the plan of the one rank that decides, or the same fault.

    Parameters
    ----------
    plan_or_fault
        On the deciding rank, the plan, or the exception that kept it from having one. Ignored on the others.
    group
        The process group; by default all ranks.
    decider
        The rank of the group that decides.

    Returns
    -------
    Plan
        Validated on every rank, its digest included.

    Raises
    ------
    PlanningFailed
        On every rank, if the deciding rank has no plan.
    IterationFailed
        On every rank, if a rank cannot read the plan.
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    decides = dist.get_rank(group) == decider
    kind, body = _encode(plan_or_fault) if decides else (_PLAN, b"")
    kind, body = _broadcast(kind, body, group, decider)
    if kind == _FAULT:
        name, detail = json.loads(body)
        cause = plan_or_fault if decides and isinstance(plan_or_fault, Exception) else None
        raise PlanningFailed(name, detail) from cause
    plan: Plan | None = None
    fault: Exception | None = None
    try:
        plan = Plan.model_validate_json(body)
    except ValueError as unreadable:
        fault = unreadable
    settle(fault, "reading the shared plan", group)
    if plan is None:
        raise IterationFailed("the shared plan could not be read", {})
    return plan


def agree_on_plan(plan: Plan, terms: Mapping[str, object], fault: Exception | None, group: Group = None) -> None:
    """Compare plans before an iteration's first collective on data.

    Parameters
    ----------
    plan
        This rank's plan.
    terms
        Whatever else must be the same on all ranks for the plan to mean the same; JSON values.
    fault
        What kept this rank from preparing its part, if anything.
    group
        The process group; by default all ranks.

    Raises
    ------
    PlanDisagreement
        On every rank, if plans or terms differ.
    IterationFailed
        On every rank, if any rank has a fault.
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    digest = digest_of(plan)
    plan_digest = hashlib.sha256(digest.encode()).digest()
    terms_digest = hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).digest()
    own = plan_digest + terms_digest + bytes([fault is not None])
    gathered = gather_bytes(own, group, "comparing plans")
    if len({digests[: 2 * _DIGEST_BYTES] for digests in gathered}) > 1:
        _raise_disagreement(digest, terms, gathered, group)
    if any(digests[-1] for digests in gathered):
        _raise_failure(fault, "preparing the iteration", group)


def settle(fault: Exception | None, doing: str, group: Group = None) -> None:
    """End what all ranks just did: return on every rank, or raise the same fault on every rank.

    Raises
    ------
    IterationFailed
        On every rank, if any rank has a fault.
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    flags = gather_bytes(bytes([fault is not None]), group, doing)
    if any(flag[0] for flag in flags):
        _raise_failure(fault, doing, group)


def digest_of(plan: object) -> str:
    """Return the digest of what a rank would act on, or what it was given in place of a plan.

    It is computed anew: a plan may have been changed since it was read.
    """
    if not isinstance(plan, Plan):
        return f"a {type(plan).__name__} and no plan"
    try:
        return plan.expected_digest()
    except Exception as broken:  # noqa: BLE001 - whatever a broken plan raises, the ranks that wait must hear of it
        return f"a broken plan ({type(broken).__name__}: {text_of(broken)})"


def _encode(plan_or_fault: Plan | Exception | None) -> tuple[int, bytes]:
    if isinstance(plan_or_fault, Plan):
        return _PLAN, plan_or_fault.model_dump_json().encode()
    if isinstance(plan_or_fault, Exception):
        return _FAULT, json.dumps([type(plan_or_fault).__name__, text_of(plan_or_fault)]).encode()
    given = type(plan_or_fault).__name__
    return _FAULT, json.dumps(["NoDecision", f"the deciding rank gave {given}, neither a plan nor a fault"]).encode()


def _broadcast(kind: int, body: bytes, group: Group, decider: int) -> tuple[int, bytes]:
    device = collective_device(group)
    header = torch.tensor([kind, len(body)], dtype=torch.int64, device=device)
    with rank_loss_named("waiting for the shared plan"):
        dist.broadcast(header, group=group, group_src=decider)
    kind, size = header.tolist()
    content = torch.zeros(size, dtype=torch.uint8, device=device)
    if dist.get_rank(group) == decider:
        content.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
    with rank_loss_named("receiving the shared plan"):
        dist.broadcast(content, group=group, group_src=decider)
    return kind, bytes(content.cpu().numpy())


def _raise_disagreement(digest: str, terms: Mapping[str, object], gathered: list[bytes], group: Group) -> None:
    """Name what differs; the plans' digests and the terms travel once more, since only hashes were compared."""
    digests = tuple(_gather_text(digest, group))
    if len(set(digests)) > 1:
        listed = ", ".join(f"rank {rank} has {digest}" for rank, digest in enumerate(digests))
        raise PlanDisagreement(
            f"ranks hold different plans: {listed}; let one rank fetch the plan and share it with share_plan", digests
        )
    different = [rank for rank, other in enumerate(gathered) if other[:-1] != gathered[0][:-1]]
    all_terms = _gather_text(json.dumps(terms, sort_keys=True), group)
    raise PlanDisagreement(
        f"ranks run one plan on different terms: rank 0 has {all_terms[0]}, rank {different[0]} has "
        f"{all_terms[different[0]]}; build the runner with the same arguments on every rank",
        digests,
    )


def _raise_failure(fault: Exception | None, doing: str, group: Group) -> None:
    own = "" if fault is None else f"{type(fault).__name__}: {text_of(fault)}"
    texts = _gather_text(own, group)
    messages = {rank: text for rank, text in enumerate(texts) if text}
    listed = "; ".join(f"rank {rank}: {text}" for rank, text in messages.items())
    raise IterationFailed(f"{len(messages)} of {len(texts)} ranks failed while {doing}: {listed}", messages) from fault


def _gather_text(text: str, group: Group) -> list[str]:
    padded = text.encode(errors="backslashreplace")[:MAX_FAULT_BYTES].ljust(MAX_FAULT_BYTES, b"\0")
    gathered = gather_bytes(padded, group, "telling the other ranks what failed")
    return [other.rstrip(b"\0").decode(errors="ignore") for other in gathered]
