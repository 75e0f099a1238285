"""What every store owes for nodes, held over all back ends."""

import time

from store_kinds import OpenStore

from planner_service.store import NodeRow, Store


def names(store: Store, jobs: tuple[str, ...] | None = None) -> list[str]:
    return [row.name for row in store.nodes.page(after="", limit=100, jobs=jobs)]


def prune(store: Store, keep_nodes_s: float) -> int:
    return store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0, keep_nodes_s=keep_nodes_s)


def test_a_node_is_as_it_was_last_reported_and_remembers_when_it_was_first(open_store: OpenStore) -> None:
    store, began_at = open_store(), time.time()
    first = store.nodes.put(NodeRow("n", b"\x00first", "job-1"))
    time.sleep(0.01)
    last = store.nodes.put(NodeRow("n", b"last"))
    assert first.registered_at == first.last_seen_at == last.registered_at < last.last_seen_at
    assert began_at - 5 < first.registered_at < time.time() + 5
    [found] = open_store().nodes.page(after="", limit=10)
    assert (found.name, found.content, found.job) == ("n", b"last", None)
    assert (found.registered_at, found.last_seen_at) == (last.registered_at, last.last_seen_at)
    assert found.read_at >= found.last_seen_at


def test_nodes_are_paged_by_the_codes_of_their_characters(store: Store) -> None:
    for name in ("b", "a", "B", "a-1", "Z9"):
        store.nodes.put(NodeRow(name, b"{}"))
    first = store.nodes.page(after="", limit=3)
    rest = store.nodes.page(after=first[-1].name, limit=3)
    assert [row.name for row in (*first, *rest)] == sorted(["b", "a", "B", "a-1", "Z9"])
    assert store.nodes.page(after="a\x00b", limit=1)[0].name == "a-1"


def test_nodes_are_found_by_the_jobs_they_work_for(store: Store) -> None:
    for name, job in {"a": "run-1", "b": "run-12", "c": "other", "d": None, "e": "run_1"}.items():
        store.nodes.put(NodeRow(name, b"{}", job))
    assert names(store) == ["a", "b", "c", "d", "e"]
    assert names(store, ("run-1",)) == ["a"]
    assert names(store, ("run-*", "other")) == ["a", "b", "c"]
    assert names(store, ("run_*",)) == ["e"]
    assert names(store, ("*",)) == ["a", "b", "c", "e"]
    assert names(store, ()) == names(store, ("%",)) == []


def test_nodes_that_are_not_heard_of_go(store: Store) -> None:
    for name in ("a", "b"):
        store.nodes.put(NodeRow(name, b"{}"))
    assert prune(store, 3600.0) == 0
    time.sleep(0.3)
    store.nodes.put(NodeRow("b", b"{}"))
    assert prune(store, 0.2) == 1
    assert names(store) == ["b"]
    again = store.nodes.put(NodeRow("a", b"{}"))
    assert again.registered_at == again.last_seen_at
