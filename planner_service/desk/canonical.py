"""The one form of a request: what its key is computed from and what the solver is given."""

import hashlib
from collections.abc import Sequence

import orjson
from pydantic import BaseModel

from planner_client.contract import PlanRequest, Profile


def canonical_json(value: BaseModel) -> bytes:
    """Write a wire value with all defaults filled in, keys sorted, no spaces."""
    return orjson.dumps(orjson.loads(value.model_dump_json()), option=orjson.OPT_SORT_KEYS)


def canonical_request(request: PlanRequest) -> PlanRequest:
    """Return the same request with profiles by name and sources ascending.

    Requests with one key are given to the solver in one form, so that the order in which a client
    wrote its sources cannot make two services answer differently.
    """
    changes: dict[str, object] = {}
    if isinstance(request.profile, Profile):
        changes["profile"] = request.profile.name
    if request.devices is not None:
        changes["devices"] = [pool.model_copy(update={"profile": pool.profile_name}) for pool in request.devices]
    if isinstance(request.lengths, dict):
        changes["lengths"] = dict(sorted(request.lengths.items()))
    if request.histograms is not None:
        changes["histograms"] = dict(sorted(request.histograms.items()))
    if request.atomic_groups is not None:
        changes["atomic_groups"] = dict(sorted(request.atomic_groups.items()))
    return request.model_copy(update=changes)


def request_key(request: PlanRequest, profiles: Sequence[Profile], planner_version: str) -> str:
    """Digest everything a plan depends on: the canonical request, the profiles' content, the planner's version."""
    digest = hashlib.sha256()
    for part in (canonical_json(request), *map(canonical_json, profiles), planner_version.encode()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return "sha256:" + digest.hexdigest()


def content_digest(content: bytes) -> str:
    """Digest of canonical JSON."""
    return "sha256:" + hashlib.sha256(content).hexdigest()
