import gzip
import io
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from planner_client.contract import Plan
from planner_service.commands.plan import plan as plan_command
from planner_service.commands.plan_table import show_plan
from planner_service.profiles import builtin_profiles

DATA = Path(__file__).parent.parent / "data"
HYDRAULIS = str(Path(sys.executable).parent / "hydraulis")
PROFILE_32B = ("--profile", "llama-32b-a800-80g", "--gpus", "64")
GITHUB = ("--lengths", "github", "--max-length", "32768", "--over-long", "drop")
REDIS = ("--lengths", str(DATA / "code-redis-c.csv"), "--max-length", "20000", "--over-long", "drop")


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HYDRAULIS, "plan", *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def planned(*arguments: str, stdin: str | None = None) -> Plan:
    done = run(*arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return Plan.model_validate_json(done.stdout)


def refused(*arguments: str, stdin: str | None = None) -> str:
    """Run the command in this process, which a refusal leaves as it was."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(plan_command)
    done = CliRunner().invoke(app, list(arguments), input=stdin)
    assert (done.exit_code, done.stdout) == (2, ""), (done.exception, done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("hydraulis plan: ")
    return done.stderr


def test_a_refusal_is_the_same_in_a_process_of_its_own() -> None:
    arguments = (*PROFILE_32B, "--lengths", "-", "--seed", "-1")
    done = run(*arguments, stdin="5")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", refused(*arguments, stdin="5"))


def test_a_stream_is_planned_with_the_best_of_several_candidates() -> None:
    plan = planned(
        *PROFILE_32B,
        "--strategy", "(16,1)x4",
        "--strategy", "(16,1)x1,(8,1)x6",
        "--strategy", "(4,1)x16",
        *GITHUB,
        "--tokens", "200000",
    )  # fmt: skip
    assert plan.strategy == "(16,1)x1,(8,1)x6"
    assert 200_000 <= plan.num_tokens < 232_768
    assert plan.gap is not None
    assert plan.gap < 0.02
    assert [entry.length for entry in plan.dropped] == [43_642]
    assert [entry.strategy for entry in plan.passed_over] == ["(4,1)x16"]


def test_people_get_a_table_with_load_bound_and_gap() -> None:
    done = run(*PROFILE_32B, "--strategy", "(8,1)x8", "--lengths", "-", stdin="500\n" * 40)
    assert done.returncode == 0, done.stderr
    for word in ("(8,1)", "load", "makespan", "lower bound", "gap", "sequences"):
        assert word in done.stdout


def test_the_same_command_prints_the_same_plan_but_for_its_planning_time() -> None:
    arguments = (*PROFILE_32B, *REDIS, "--strategy", "(8,1)x8", "--tokens", "50000", "--seed", "7")
    first, second = planned(*arguments), planned(*arguments)
    assert first.model_dump(exclude={"planning_ms"}) == second.model_dump(exclude={"planning_ms"})
    assert first.seed == 7
    assert planned(*arguments[:-1], "8").digest != first.digest


def test_every_file_format_gives_the_same_plan(tmp_path: Path) -> None:
    lengths = [700, 20, 3000, 20, 15_000]
    text = "".join(f"{length}\n" for length in lengths)
    (tmp_path / "a.txt").write_text(text)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as out:
        out.write(text)
    (tmp_path / "a.json").write_text(json.dumps(lengths))
    np.save(tmp_path / "a.npy", np.array(lengths))
    (tmp_path / "a.csv").write_text("length,count\n20,2\n700,1\n3000,1\n15000,1\n")
    names = ("a.txt", "a.txt.gz", "a.json", "a.npy", "a.csv")
    arguments = (*PROFILE_32B, "--strategy", "(16,1)x4", "--lengths")
    digests = {planned(*arguments, str(tmp_path / name)).digest for name in names}
    digests.add(planned(*arguments, "-", stdin=text).digest)
    assert len(digests) == 1


def test_tokens_are_taken_from_a_stream_in_order() -> None:
    plan = planned(*PROFILE_32B, "--lengths", "-", "--tokens", "25", stdin="10\n9\n8\n7\n")
    placed = sorted(
        entry.length
        for r in plan.replicas
        for m in r.micro_batches
        for entry in m.sequences
        for _ in range(entry.count)
    )
    assert placed == [8, 9, 10]


def test_an_empty_batch_is_planned_with_idle_replicas() -> None:
    plan = planned(*PROFILE_32B, "--lengths", "-", stdin="")
    assert plan.num_sequences == 0
    assert all(not replica.micro_batches for replica in plan.replicas)


def test_an_alignment_shows_as_padding_and_obeys_the_caps() -> None:
    plan = planned(*PROFILE_32B, "--lengths", "-", "--alignment", "128", stdin="100\n129\n128\n")
    micro_batches = [m for r in plan.replicas for m in r.micro_batches]
    assert sum(m.num_tokens for m in micro_batches) == 357
    assert sum(m.num_padding_tokens for m in micro_batches) == 28 + 127
    assert all(m.num_tokens + m.num_padding_tokens <= r.max_tokens for r in plan.replicas for m in r.micro_batches)


def test_a_plain_loaders_plan_can_be_compared() -> None:
    arguments = (*PROFILE_32B, *GITHUB, "--strategy", "(16,1)x4", "--tokens", "200000")
    plain, ours = planned(*arguments, "--method", "plain"), planned(*arguments)
    assert plain.num_tokens == ours.num_tokens
    assert plain.makespan_ms > 1.02 * ours.makespan_ms


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("--profile", "gpt-9", "--gpus", "8", "--lengths", "-"), "5", ["'gpt-9'", "llama-32b-a800-80g"]),
        ((*PROFILE_32B, "--lengths", "nowhere.txt"), None, ["nowhere.txt", "No such file"]),
        ((*PROFILE_32B, "--lengths", "lengths.parquet"), None, ["lengths.parquet", ".csv"]),
        ((*PROFILE_32B, "--lengths", "-"), "5\nfive\n", ["line 2", "'five'"]),
        ((*PROFILE_32B, "--lengths", "-"), "5\n0\n", ["line 2", "length 0", "give 1"]),
        ((*PROFILE_32B, "--lengths", "-"), "5\n-3\n", ["line 2", "'-3'"]),
        ((*PROFILE_32B, "--lengths", "-"), "5.5\n", ["line 1", "'5.5'"]),
        ((*PROFILE_32B, "--lengths", "-"), "99999999999999999999\n", ["line 1"]),
        ((*PROFILE_32B, "--lengths", "-"), "50000\n", ["50000", "43520", "(16,1)"]),
        ((*PROFILE_32B, "--lengths", "-", "--max-length", "10"), "11\n", ["10, the --max-length", "set --over-long"]),
        ((*PROFILE_32B, "--lengths", "-", "--strategy", "16x4"), "5", ["'16x4'", "(tp,pp)xCOUNT"]),
        ((*PROFILE_32B, "--lengths", "-", "--strategy", "(2,1)x32"), "5", ["(2,1)", "memory limit"]),
        ((*PROFILE_32B, "--lengths", "-", "--strategy", "(3,1)x2"), "5", ["(3,1)", "no layout"]),
        ((*PROFILE_32B, "--lengths", "-", "--strategy", "(16,1)x5"), "5", ["80 GPUs of 64"]),
        ((*PROFILE_32B, "--lengths", "-", "--optimizer-layout", "4,16"), "5", ["'4,16'", "DP,TP,PP"]),
        ((*PROFILE_32B, "--lengths", "-", "--optimizer-layout", "4,16,2"), "5", ["128", "64"]),
        ((*PROFILE_32B, "--lengths", "-", "--alignment", "0"), "5", [" --alignment: ", "0"]),
        ((*PROFILE_32B, "--lengths", "-", "--deadline-ms", "0"), "5", [" --deadline-ms: ", "0"]),
        ((*PROFILE_32B, "--lengths", "-", "--seed", "-1"), "5", [" --seed: ", "-1"]),
        ((*PROFILE_32B, "--lengths", "-", "--allow-layout", "8x1"), "5", ["'8x1'", "(tp,pp)", "(8,1)"]),
        ((*PROFILE_32B, "--lengths", "-", "--allow-layout", "(3,1)"), "5", ["--allow-layout names (3,1)", "(8,1)"]),
        (
            (*PROFILE_32B, "--lengths", "-", "--allow-layout", "(3,1)", "--allow-layout", "(8,1)"),
            "5",
            ["--allow-layout names (3,1)", "llama-32b-a800-80g does not have"],
        ),
        ((*PROFILE_32B, "--lengths", "-", "--allow-layout", "(9999,1)"), "5", ["--allow-layout tp: ", "9999"]),
        (
            (*PROFILE_32B, "--lengths", "-", "--micro-batch-count-multiple", "50"),
            "5\n" * 22,
            ["50 micro-batches or more, a multiple of 50, none of them empty", "there are 22 sequences"],
        ),
        ((*PROFILE_32B, "--lengths", "-", "--micro-batch-count-multiple", "0"), "5", ["-count-multiple: ", "0"]),
        ((*PROFILE_32B, "--lengths", "-", "--max-tokens-per-micro-batch", "0"), "5", ["--max-tokens-per-", "0"]),
        ((*PROFILE_32B, "--lengths", "-", "--max-tokens-per-micro-batch", "4"), "5", ["limit is 4, what --max-tokens"]),
        ((*PROFILE_32B, "--lengths", "-", "--max-process-groups", "-1"), "5", ["--max-process-groups: ", "-1"]),
        ((*PROFILE_32B, "--lengths", "-", "--method", "plain", "--cost", "padded"), "5", ["method plain", "--cost"]),
        ((*PROFILE_32B, "--lengths", "-", "--strategies", "none.json"), "5", ["none.json", "No such file"]),
        (("--profile", "llama-32b-a800-80g", "--gpus", "many", "--lengths", "-"), "5", ["'many'", "DEVICE:NUMBER"]),
        (("--profile", "llama-32b-a800-80g", "--gpus", "H100:8", "--lengths", "-"), "5", ["'H100'", "A800 80GB"]),
        ((*PROFILE_32B, "--profile", "llama-7b-a100-40g", "--lengths", "-"), "5", ["2 profiles", "A100 40GB:N"]),
        (
            (*PROFILE_32B[:2], "--profile", "llama-13b-a800-80g", "--gpus", "A800 80GB:8", "--lengths", "-"),
            "5",
            ["llama-13b-a800-80g", "both", "A800 80GB"],
        ),
        (
            (*PROFILE_32B[:2], "--profile", "llama-7b-a100-40g", "--gpus", "A800 80GB:8", "--lengths", "-"),
            "5",
            ["llama-7b-a100-40g", "does not name"],
        ),
        (("--profile", "llama-32b-a800-80g", "--gpus", "0", "--lengths", "-"), "5", [" --gpus: ", "0"]),
        (
            (
                "--profile", "llama-7b-a800-80g", "--profile", "llama-7b-a100-40g",
                "--gpus", "A800 80GB:1,A100 40GB:1", "--lengths", "-",
            ),
            "5",
            ["1 A800 80GB and 1 A100 40GB", "smallest take 2 A800 80GB"],
        ),
        (("--profile", "llama-32b-a800-80g", "--gpus", "2", "--lengths", "-"), "5", ["2 GPU", "positive memory limit"]),
    ],
)  # fmt: skip
def test_bad_input_ends_with_exit_code_2_and_one_clear_sentence(
    arguments: tuple[str, ...], stdin: str | None, words: list[str]
) -> None:
    said = refused(*arguments, stdin=stdin)
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"length;count\n5;1\n", ["line 1", "length,count"]),
        ("a.csv", b"length,count\n5\n", ["line 2", "1 cells"]),
        ("a.csv", b"length,count\n5,0\n", ["line 2", "count"]),
        ("a.json", b'{"5": 1}', ["dict", "list"]),
        ("a.json", b"[1, 2", ["not JSON"]),
        ("a.json", b"[1, true]", ["element 1", "True"]),
        ("a.json", b"[" * 100_000, ["not JSON"]),
        ("a.npy", b"\x93NUMPY garbage", ["a.npy"]),
        ("a.txt", b"\xff\xfe5\n", ["not UTF-8"]),
        ("a.txt.gz", b"not gzip", ["a.txt.gz"]),
    ],
)
def test_a_broken_file_is_refused_naming_the_place(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    said = refused(*PROFILE_32B, "--lengths", str(path))
    for word in words:
        assert word in said, said


def test_an_array_of_the_wrong_shape_or_type_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 2), int))
    assert "(2, 2)" in refused(*PROFILE_32B, "--lengths", str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", np.ones(3))
    assert "float64" in refused(*PROFILE_32B, "--lengths", str(tmp_path / "b.npy"))


def test_a_profile_can_come_from_a_file(tmp_path: Path) -> None:
    profile = {
        "name": "mine",
        "source": "made up for a test",
        "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
        "device": {"name": "CPU", "memory_bytes": 1073741824, "gpus_per_node": 2},
        "layouts": [{"tp": 1, "pp": 1, "a_ms_per_token2": 0.0, "b_ms_per_token": 0.1, "c_ms": 1.0, "max_tokens": 100}],
    }
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(profile))
    plan = planned("--profile", str(path), "--gpus", "2", "--lengths", "-", stdin="60\n60\n")
    assert plan.makespan_ms == pytest.approx(7.0)
    assert plan.status == "optimal"
    path.write_text(json.dumps({**profile, "layouts": []}))
    assert "layouts" in refused("--profile", str(path), "--gpus", "2", "--lengths", "-", stdin="60\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", ["not JSON"]),
        ('{"strategies": 5}', ["hydraulis propose"]),
        ("[]", ["hydraulis propose"]),
        ('["(8,1)x8", 5]', ["element 1", "5"]),
        ('{"strategies": [{"share": 1.0}]}', ["element 0", "null"]),
        ('["16x4"]', ["element 0", "16x4"]),
    ],
)
def test_a_file_of_strategies_that_cannot_be_used_is_refused_naming_the_place(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    path = tmp_path / "strategies.json"
    path.write_text(content)
    said = refused(*PROFILE_32B, "--lengths", "-", "--strategies", str(path), stdin="5\n")
    for word in (str(path), *words):
        assert word in said, said


def test_a_file_of_proposed_strategies_and_a_plain_list_give_the_same_candidates(tmp_path: Path) -> None:
    names = ["(16,1)x4", "(16,1)x1,(8,1)x6"]
    proposed, listed = tmp_path / "proposed.json", tmp_path / "listed.json"
    proposed.write_text(json.dumps({"profile": "x", "strategies": [{"strategy": n, "share": 0.5} for n in names]}))
    listed.write_text(json.dumps(names))
    arguments = (*PROFILE_32B, "--lengths", "-", "--max-length", "32768")
    stdin = "30000\n" + "2000\n" * 60
    plans = [planned(*arguments, "--strategies", str(path), stdin=stdin) for path in (proposed, listed)]
    plans.append(planned(*arguments, "--strategy", names[0], "--strategy", names[1], stdin=stdin))
    assert len({plan.digest for plan in plans}) == 1
    assert plans[0].strategy in names


def test_options_that_narrow_the_layouts_hold() -> None:
    arguments = (*PROFILE_32B, "--lengths", "-", "--allow-layout", "(8,1)", "--allow-layout", "(4,2)")
    plan = planned(*arguments, "--max-tokens-per-micro-batch", "3000", stdin="700\n" * 50)
    assert {(replica.tp, replica.pp) for replica in plan.replicas} <= {(8, 1), (4, 2)}
    assert all(replica.max_tokens <= 3000 for replica in plan.replicas)
    inside = planned(*PROFILE_32B, "--lengths", "-", "--tp-inside-node", stdin="700\n" * 50)
    assert all(replica.tp <= 8 for replica in inside.replicas)


def test_gpus_of_several_types_are_planned_together_and_shown_by_device(tmp_path: Path) -> None:
    known = builtin_profiles()
    path = tmp_path / "a100.json"
    same_model = known["llama-7b-a100-40g"].model_copy(update={"model": known["llama-7b-a800-80g"].model})
    path.write_text(same_model.model_dump_json())
    arguments = (
        "--profile", str(path), "--profile", "llama-7b-a800-80g", "--gpus", "A800 80GB:8,A100 40GB:8",
        "--strategy", "(8,1)x1@A800 80GB,(4,1)x2@A100 40GB", "--lengths", "-",
    )  # fmt: skip
    plan = planned(*arguments, stdin="700\n" * 50)
    ranks = {replica.device: min(replica.ranks) for replica in plan.replicas}
    assert set(ranks) == {"A800 80GB", "A100 40GB"}
    assert [rank >= 8 for rank in (ranks["A800 80GB"], ranks["A100 40GB"])] == [False, True]
    shown = run(*arguments, stdin="700\n" * 50).stdout
    assert "gpu: A = A800 80GB, B = A100 40GB" in " ".join(shown.split())


def test_the_table_fits_80_columns_whatever_the_numbers() -> None:
    plan = planned(*PROFILE_32B, "--strategy", "(4,4)x1,(4,1)x12", "--lengths", "-", stdin="700\n" * 50)
    first = plan.replicas[0]
    micro_batch = first.micro_batches[0]
    huge = micro_batch.model_copy(
        update={
            "num_tokens": 2**53,
            "sequences": [entry.model_copy(update={"count": 10**9}) for entry in micro_batch.sequences],
        }
    )
    vast = first.model_copy(
        update={
            "ranks": list(range(100_000, 130_000, 3)),
            "max_tokens": 2**31 - 1,
            "makespan_ms": 1.5e14,
            "micro_batches": [huge] * 1200,
        }
    )
    out = Console(width=80, file=io.StringIO())
    show_plan(plan.model_copy(update={"replicas": [vast] * 1200, "makespan_ms": 1.5e14}), out)
    text = out.file.getvalue()
    assert "1.50e+14" in text
    rows = [line for line in text.splitlines() if "(4,4)" in line and "█" in line]
    assert len(rows) == 24
    assert "…" not in "".join(row.split("100000,…")[1] for row in rows)


def test_the_version_is_shown_by_the_command_and_its_subcommands() -> None:
    for arguments in (["--version"], ["plan", "--version"], ["simulate", "--version"]):
        done = subprocess.run([HYDRAULIS, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, f"hydraulis {version('hydraulis-planner')}\n")


def test_a_deadline_of_one_millisecond_is_kept_or_said_to_be_too_short() -> None:
    done = run(*PROFILE_32B, *GITHUB, "--tokens", "400000", "--deadline-ms", "1", "--json")
    assert done.returncode in {0, 3}
    if done.returncode == 0:
        assert json.loads(done.stdout)["cut_by_wall_clock"]
    else:
        assert "--deadline-ms" in done.stderr


def test_a_draw_from_a_histogram_takes_only_what_is_trained_on_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "skewed.csv"
    path.write_text("length,count\n1,1\n100000,1000000000\n")
    drawn = planned(
        *PROFILE_32B, "--lengths", str(path), "--tokens", "1000", "--max-length", "100", "--over-long", "drop"
    )
    assert (drawn.num_sequences, drawn.num_tokens, drawn.dropped) == (1000, 1000, [])
    said = refused(*PROFILE_32B, "--lengths", str(path), "--tokens", "2000000", "--max-length", "100")
    assert "1000000 sequences" in said


def test_a_profile_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"samples": 1}')
    said = refused("--profile", str(path), "--gpus", "2", "--lengths", "-", stdin="60\n")
    assert str(path) in said
    assert "raw samples" in said


def test_people_are_told_what_was_placed_and_whether_the_plan_is_proven_optimal() -> None:
    plan = planned(*PROFILE_32B, "--strategy", "(16,1)x4", "--lengths", "-", stdin="700\n" * 50)

    def shown(**fields: object) -> str:
        out = Console(width=80, file=io.StringIO())
        show_plan(plan.model_copy(update=fields), out)
        return " ".join(out.file.getvalue().split())

    assert "sequences 50 with 35,000 tokens in all" in shown()
    assert "gap 1.00% (found by search)" in shown(gap=0.01, status="feasible", solved_by="heuristic")
    assert "gap 0.00% (proven optimal, found by CP-SAT)" in shown(gap=0.0, status="optimal", solved_by="cp-sat")
