"""The Dockerfile keeps the images' promises, as far as its text can tell; `make images` builds them and looks."""

import re
import tomllib

from rendered import EVERYTHING, ROOT, containers, pods, rendered

LINES = [
    re.sub(r"\s+", " ", line)
    for line in re.sub(
        r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    ).splitlines()
    if line
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage, with those of the stages it begins from."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in LINES:
        begins = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if begins:
            current = list(found.get(begins[1], ()))
            found[begins[2]] = current
        current.append(line)
    return found


def said(stage: str, instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in stages()[stage] if line.startswith(instruction + " ")]


def test_every_stage_begins_from_the_one_base_that_can_be_named_with_its_digest() -> None:
    assert LINES[0].startswith("ARG BASE=")
    named = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    assert named - stages().keys() == {"${BASE}"}


def test_the_images_run_as_a_numbered_user_that_is_not_root() -> None:
    for stage in ("planner", "agent"):
        assert said(stage, "USER") == ["65532:65532"]
        last_user = max(number for number, line in enumerate(stages()[stage]) if line.startswith("USER "))
        assert not [line for line in stages()[stage][last_user:] if line.startswith("RUN ")]
    for name in EVERYTHING:
        for pod in pods(rendered(name)):
            assert pod.template["spec"]["securityContext"]["runAsUser"] == 65532


def test_signals_reach_the_process_since_no_shell_stands_between() -> None:
    for stage in ("planner", "agent"):
        assert said(stage, "ENTRYPOINT") == ['["hydraulis"]']
        assert said(stage, "CMD")[-1].startswith("[")
        assert said(stage, "STOPSIGNAL") == ["SIGTERM"]


def test_nothing_that_builds_is_in_the_final_stages() -> None:
    for stage in ("planner", "agent"):
        for run in said(stage, "RUN"):
            assert not re.search(r"\bpip install|apt-get|gcc|curl|wget", run), run
        copied = [line for line in said(stage, "COPY") if "--from=" in line]
        assert copied == [f"--from={stage}-files /opt/hydraulis /opt/hydraulis"]
    assert LINES[-1].startswith("CMD ")
    assert list(stages())[-1] == "planner", "what is built when no target is named"


def test_everything_is_installed_at_its_pinned_version_and_nothing_is_cached() -> None:
    installs = [line for line in LINES if re.search(r"pip .*install --quiet", line)]
    assert len(installs) == 3
    for line in installs:
        assert "--constraint constraints.txt" in line
        assert "--mount=type=secret,id=pip.conf" in line
    assert any("PIP_NO_CACHE_DIR=1" in line for line in said("wheel", "ENV"))
    assert "[service,tracing]" in str(stages()["planner-files"])
    assert "[agent]" in str(stages()["agent-files"])
    assert "agent" not in str(said("planner", "COPY"))


def test_the_health_check_is_a_file_of_the_image_and_needs_no_other_program() -> None:
    (check,) = said("planner", "HEALTHCHECK")
    assert check.endswith('CMD ["healthcheck"]')
    assert any(line.endswith("deploy/image/healthcheck.py /opt/hydraulis/bin/healthcheck") for line in LINES)


def test_labels_tell_what_the_image_is() -> None:
    for stage in ("planner", "agent"):
        (labels,) = said(stage, "LABEL")
        for key in ("title", "description", "licenses", "version", "revision"):
            assert f"org.opencontainers.image.{key}=" in labels
        assert f'licenses="{PROJECT["license"]}"' in labels


def test_manifests_name_the_images_of_this_version() -> None:
    images = {
        container["image"]
        for name in EVERYTHING
        for pod in pods(rendered(name))
        for container in containers(pod)
    }  # fmt: skip
    assert images == {f"hydraulis-{target}:{PROJECT['version']}" for target in ("planner", "agent")}


def test_only_what_the_images_are_made_of_reaches_the_builder() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        part for line in LINES if line.startswith("COPY ") and "--from" not in line for part in line.split()[1:-1]
    }
    assert let_in == {part for part in copied if not part.startswith("--")}
    assert all((ROOT / name).exists() for name in let_in)
