"""A process that writes to a store without end and says of each write when it was acknowledged.

``python crash_writer.py`` reads lines ``DATABASE SEED``, starts a writer for each, prints its process id, and, when it
ended, ``["ended"]``. In between come the writer's acknowledgements, a JSON list a line, written when the call returned.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable

from planner_service.store import (
    AuditRow,
    JobRow,
    PlanRow,
    ProfileRow,
    ReportTerms,
    SqlStore,
    Store,
    StoreUnavailable,
    TokenConflict,
    TokenRow,
)

PAUSE_S = 0.02
LEASE_S = 0.05
LARGEST_BYTES = 30_000
TERMS = ReportTerms(num_expected=2, wait_s=60.0, max_open=1000)


def body_of(name: str) -> bytes:
    """Return the bytes that stand under a name, for writers and for whoever looks for them."""
    chance = random.Random(name)  # noqa: S311 - bytes that can be made again
    return chance.randbytes(chance.randrange(1, LARGEST_BYTES))


def token_of(seed: int, number: int) -> TokenRow:
    return TokenRow(f"t-{seed}-{number}", f"{seed:032x}{number:032x}", "plan", (f"run-{seed}",))


def say(*told: object) -> None:
    os.write(1, (json.dumps(told) + "\n").encode())


def insist(call: Callable[[], object]) -> None:
    """Call until the store can be used again, as the service's callers do."""
    while True:
        try:
            call()
        except StoreUnavailable:
            say("unavailable")
            time.sleep(PAUSE_S)
        else:
            return


def write(store: Store, seed: int) -> None:
    """Write for ever."""
    job, owner = f"run-{seed}", f"writer-{seed}"
    insist(lambda: store.jobs.put(JobRow(job, body_of(job))))
    say("job", job)
    number = 0
    while True:
        write_iteration(store, job, owner, number)
        write_beside(store, seed, number)
        number += 1


def write_iteration(store: Store, job: str, owner: str, number: int) -> None:
    """Take one iteration from its first report to its measured times."""
    for source in ("a", "b"):
        batch = {source: body_of(f"{job} {number} {source}")}
        insist(lambda batch=batch: store.jobs.report(job, number, batch, TERMS))
        say("report", job, number, source)
    insist(lambda: finish_one(store, job, owner))
    key = f"sha256:timings {job} {number}"
    insist(lambda: store.jobs.iteration(job, number) and store.jobs.put_timings(job, number, key, body_of(key), 1.0))
    say("timings", job, number, key)


def finish_one(store: Store, job: str, owner: str) -> None:
    """Take up an iteration and store its plan."""
    claim = store.jobs.claim(owner, LEASE_S)
    if claim is None:
        return
    key = f"plan {claim.job} {claim.iteration}"
    say("claim", claim.job, claim.iteration, claim.num_tries, sorted(claim.batches))
    row = store.jobs.finish(claim, PlanRow(key, f"digest {key}", body_of(key)), body_of(f"summary {key}")[:100])
    if row is not None and claim.job == job:
        say("finish", claim.job, claim.iteration, key)


def write_beside(store: Store, seed: int, number: int) -> None:
    """Write a little of everything else."""
    name = f"alone {seed} {number}"
    insist(lambda: store.plans.put(PlanRow(name, f"digest {name}", body_of(name))))
    say("plan", name)
    insist(lambda: store.profiles.put(ProfileRow(name, body_of(name), f"sha256:{name}")))
    say("profile", name)
    insist(lambda: put_token(store, token_of(seed, number)))
    say("token", seed, number)
    insist(lambda: store.access.record(AuditRow(None, "wrote", name, "done")))
    say("audit", name)


def put_token(store: Store, row: TokenRow) -> None:
    try:
        store.access.put_token(row)
    except TokenConflict:
        # It was stored by a call whose answer was lost.
        if store.access.token_with_hash(row.secret_hash) is None:
            raise


def main() -> None:
    for line in sys.stdin:
        database, seed = line.rsplit(maxsplit=1)
        writer = os.fork()
        if writer == 0:
            write(SqlStore(database), int(seed))
        say("writer", writer)
        os.waitpid(writer, 0)
        say("ended")


if __name__ == "__main__":
    main()
