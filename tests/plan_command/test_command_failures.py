import pytest
import typer
from pydantic import ValidationError

from planner_client.contract import PlanRequest
from planner_service.commands.failures import (
    BAD_INPUT,
    INTERRUPTED,
    NO_PLAN_IN_TIME,
    failures_of,
    first_error,
    in_options,
)
from planner_service.core.faults import PlanningFault

CLUSTER = {"profile": "mine", "num_gpus": 8, "lengths": [5]}


def invalid(**fields: object) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        PlanRequest.model_validate({**CLUSTER, **fields})
    return refused.value


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (
            PlanningFault("sequence-too-long", "it is too long", "set over_long to drop"),
            BAD_INPUT,
            "set --over-long to",
        ),
        (PlanningFault("deadline-exceeded", "none yet", "raise options.deadline_ms"), NO_PLAN_IN_TIME, "--deadline-ms"),
        (invalid(options={"seed": -1}), BAD_INPUT, "--seed: Input should be"),
        (ValueError("the file\nhas two lines"), BAD_INPUT, "the file has two lines"),
        (KeyboardInterrupt(), INTERRUPTED, "stopped"),
    ],
)
def test_each_failure_that_a_user_can_act_on_ends_with_its_code_and_one_line(
    raised: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, failures_of("plan"):
        raise raised
    assert ended.value.exit_code == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hydraulis plan: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_defect_is_not_taken_for_bad_input() -> None:
    with pytest.raises(ZeroDivisionError), failures_of("plan"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_gpus": 0}, "--gpus: Input should be greater than or equal to 1 (got 0)"),
        (
            {"profile": None, "num_gpus": None, "devices": [{"profile": "a", "num_gpus": 0}]},
            "--gpus: Input should be greater than or equal to 1 (got 0)",
        ),
        ({"options": {"max_length": 0}}, "--max-length: Input should be greater than or equal to 1 (got 0)"),
        ({"options": {"allowed_layouts": [{"tp": 0, "pp": 1}]}}, "--allow-layout tp: Input should be greater"),
        ({"optimizer_layout": {"dp": 0, "tp": 1, "pp": 1}}, "--optimizer-layout dp: Input should be greater"),
        (
            {"options": {"method": "plain", "cost": "padded", "idle_replicas": "forbid"}},
            "does not honour --cost, --forbid-idle-replicas;",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_said_of_the_option_it_came_from(fields: dict[str, object], said: str) -> None:
    assert said in first_error(invalid(**fields), names_options=True)


def test_what_is_wrong_with_something_as_a_whole_does_not_repeat_it() -> None:
    with pytest.raises(ValidationError) as refused:
        PlanRequest.model_validate_json(b"not json")
    assert "got" not in first_error(refused.value)
    assert "got" not in first_error(invalid(num_gpus=None))


def test_a_value_of_a_file_keeps_its_place_in_the_file() -> None:
    assert first_error(invalid(options={"seed": -1})).startswith("options.seed: ")


def test_only_names_of_the_wire_are_taken_for_options() -> None:
    assert in_options("raise num_gpus or options.deadline_ms") == "raise --gpus or --deadline-ms"
    untouched = "the cost of a method, its seed, max_tokens and --strategies lengths"
    assert in_options(untouched) == untouched
