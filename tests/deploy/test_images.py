"""Both images are built for real, hold nothing that they should not, and run as a cluster runs them.

1. The planner's image serves plans on a read-only root, as a user without any capability, and ends at SIGTERM with 0.
2. Neither holds a compiler, a set-user-ID file, a cache or a secret of the build; the planner's holds no torch.
3. Two ranks in the agent's image train by plans of the planner's image.
"""

import json
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_images import Builder, Image
from confined import Confined
from rendered import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

USER = 65532
PLANNER_MOST_BYTES = 600 * 1024**2
BUILDS = ("gcc", "cc", "g++", "make", "ld", "as", "pip", "pip3", "cargo", "git", "curl", "wget")
ASK = """
import json, urllib.request
def ask(path, body=None, token=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + token} if token else {})
    request = urllib.request.Request("http://127.0.0.1:8000" + path, body and json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=30).read().decode()
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("images")
    made = Builder(folder)
    made.make_base()
    yield made
    made.close()


@pytest.fixture(scope="module")
def planner(builder: Builder) -> Image:
    return builder.build("planner", "hydraulis-planner")


@pytest.fixture(scope="module")
def agent(builder: Builder) -> Image:
    return builder.build("agent", "hydraulis-agent")


def _volume(folder: Path) -> Path:
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    return folder


def _until_ready(serving: Confined, planner_is: str = "/readyz") -> None:
    ends_at = time.monotonic() + 120
    while True:
        try:
            serving.ask(ASK + f"print(ask('{planner_is}'))")
        except AssertionError:
            assert time.monotonic() < ends_at
            time.sleep(0.5)
        else:
            return


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_planner_plans_read_only_and_without_rights_and_ends_when_told(planner: Image, tmp_path: Path) -> None:
    serving = Confined(planner, volumes={"/var/lib/hydraulis": _volume(tmp_path / "state")})
    _until_ready(serving)
    token = serving.beside("hydraulis", "tokens", "create", "me", "--scope", "plan").strip()
    body = {"profile": "llama-7b-a100-40g", "num_gpus": 8, "lengths": [100, 200, 1500]}
    plan = json.loads(serving.ask(ASK + f"print(ask('/v1/plans', {body}, {token!r}))"))
    assert plan["num_sequences"] == 3
    assert json.loads(serving.ask(ASK + "print(ask('/healthz'))"))["status"] == "ok"
    serving.beside(*planner.config["Healthcheck"]["Test"][1:])
    inside = _status(serving.pid)
    assert inside["Uid"].split() == [str(USER)] * 4
    assert {inside[it] for it in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    with pytest.raises(AssertionError, match="Read-only file system"):
        serving.beside("python", "-c", "open('/opt/hydraulis/written', 'w')")
    code, _, errors = serving.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
    assert "read-only" not in errors.lower()


def test_neither_image_holds_what_builds_what_raises_rights_or_what_was_secret(
    planner: Image, agent: Image, builder: Builder
) -> None:
    for image in (planner, agent):
        folders = [image.root / it.lstrip("/") for it in (*image.environment["PATH"].split(":"), "/usr/sbin", "/sbin")]
        assert [str(folder / name) for folder in folders for name in BUILDS if (folder / name).exists()] == []
        listed = [path for path in image.root.rglob("*") if not path.is_symlink()]
        assert [str(it) for it in listed if it.is_file() and it.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
        assert [str(it) for it in listed if it.name in ("pip.conf", "ca.crt", ".cache", "build.log")] == []
        assert [str(it) for it in listed if it.is_file() and it.stat().st_uid == USER] == []
        history = builder.buildah("inspect", "--type", "image", f"localhost/hydraulis-{_kind(image)}")
        assert "find-links" not in history
        assert image.config["User"] == f"{USER}:{USER}"
        assert image.config["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    packages = planner.root / "opt/hydraulis/lib"
    assert not list(packages.glob("*/site-packages/torch*"))
    assert list(packages.glob("*/site-packages/ortools"))
    assert list((agent.root / "opt/hydraulis/lib").glob("*/site-packages/torch"))
    assert not list((agent.root / "opt/hydraulis/lib").glob("*/site-packages/ortools"))


def _kind(image: Image) -> str:
    return "planner" if "planner" in image.config["Labels"]["org.opencontainers.image.title"] else "agent"


def test_the_planners_image_is_small(planner: Image, agent: Image) -> None:
    print(f"planner {planner.num_bytes / 1e6:.0f} MB, agent {agent.num_bytes / 1e6:.0f} MB")  # noqa: T201 - measured
    assert planner.num_bytes < PLANNER_MOST_BYTES


def test_the_same_source_gives_the_same_wheel(builder: Builder) -> None:
    assert builder.wheel_digest() == builder.wheel_digest()


def test_an_agent_serves_its_socket_and_two_ranks_train_by_plans(planner: Image, agent: Image, tmp_path: Path) -> None:
    serving = Confined(planner, volumes={"/var/lib/hydraulis": _volume(tmp_path / "state")})
    _until_ready(serving)
    token = serving.beside("hydraulis", "tokens", "create", "trainers", "--scope", "plan").strip()
    token_file = tmp_path / "token"
    token_file.mkdir()
    (token_file / "token").write_text(token)
    socket = _volume(tmp_path / "socket")
    reporting = Confined(
        agent,
        volumes={"/mnt": token_file, "/srv": socket},
        variables={
            "HYDRAULIS_TOKEN_FILE": "/mnt/token",
            "HYDRAULIS_AGENT_SOCKET": "/srv/agent.sock",
            "HYDRAULIS_AGENT_PORT": "-1",
        },
        beside=serving,
    )
    ends_at = time.monotonic() + 60
    while not (socket / "agent.sock").exists():
        assert time.monotonic() < ends_at
        time.sleep(0.2)
    reporting.beside("healthcheck", "unix:/srv/agent.sock")
    training = Confined(
        agent,
        *("torchrun", "--standalone", "--nproc-per-node", "2", "/mnt/train.py"),
        volumes={"/mnt": ROOT / "docs" / "examples"},
        variables={"HYDRAULIS_TOKEN": token, "GLOO_SOCKET_IFNAME": "lo"},
        beside=serving,
    )
    code, out, errors = training.wait(300)
    assert code == 0, out + errors[-4000:]
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("iteration")] == [
        f"iteration {number}" for number in range(3)
    ]
    assert reporting.stop()[0] == 0
    assert serving.stop()[0] == 0
