"""The images, built by buildah on a base of Debian's packages, with the package index that pip uses here.

Needs root and Debian. pip's settings reach the build as secrets, and local folders that they name as volumes.
"""

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rendered import ROOT

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE = "localhost/base:debian"
REACHES = ("cert", "find-links", "index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout")
"""Those of pip's settings that say where packages come from."""


def run(*command: str | Path, timeout: float = 580) -> str:
    ran = subprocess.run([str(it) for it in command], capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-3000:]}\n{ran.stderr[-6000:]}"
    return ran.stdout


class PipSettings(NamedTuple):
    """What pip needs in a build: a configuration file's text, and local folders that it names."""

    text: str
    folders: tuple[Path, ...]


def pip_settings() -> PipSettings:
    """Return what pip is told here, by its files and by the environment."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    found = re.findall(r"^(global|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE)
    told = {name: ast.literal_eval(value) for _, name, value in sorted(found, key=lambda it: it[0] == ":env:")}
    told |= {"cert": "/run/secrets/ca.crt"} if "cert" in told else {}
    told = {name: value for name, value in told.items() if name in REACHES}
    folders = [Path(it) for it in told.get("find-links", "").split() if it.startswith("/")]
    # An index names its files beside itself.
    folders += [Path(it).parent for it in re.findall(r"file://(/\S+)", told.get("extra-index-url", ""))]
    text = "[global]\n" + "".join(f"{name} = {' '.join(value.split())}\n" for name, value in told.items())
    return PipSettings(text, tuple(folder for folder in folders if folder.is_dir()))


class Image(NamedTuple):
    """A built image: where its files are, what it says of itself, and its size unpacked."""

    root: Path
    config: dict[str, Any]
    num_bytes: int

    @property
    def environment(self) -> dict[str, str]:
        return dict(it.split("=", 1) for it in self.config["Env"])

    @property
    def command(self) -> list[str]:
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


class Builder:
    """Builds images into a folder of its own.

    Parameters
    ----------
    folder
        Where images are kept; it must be on a disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = ("--root", folder / "storage", "--runroot", folder / "run")
        self._pip = pip_settings()
        (folder / "pip.conf").write_text(self._pip.text)

    def buildah(self, *arguments: str | Path) -> str:
        return run("buildah", *self._options, *arguments).strip()

    def make_base(self) -> None:
        """Make the base of the release that this machine runs, from where apt takes its packages."""
        release = dict(re.findall(r"^(\w+)=\"?([^\"\n]*)", Path("/etc/os-release").read_text(), re.MULTILINE))
        suite = release["VERSION_CODENAME"]
        targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
        mirrors = [uri for uri, name in map(str.split, targets.splitlines()) if name == suite]
        files = self._folder / "base"
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, suite, files, *mirrors[:1])
        for left in (*(files / "var/cache/apt/archives").glob("*.deb"), *(files / "var/lib/apt/lists").glob("*_*")):
            left.unlink()
        container = self.buildah("from", "scratch")
        self.buildah("copy", "--quiet", container, files, "/")
        self.buildah("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str, tag: str) -> Image:
        """Build one target of the Dockerfile, and mount it."""
        root = self._built(target, tag, "--layers")
        about = json.loads(self.buildah("inspect", "--type", "image", f"localhost/{tag}"))
        num_bytes = int(run("du", "--summarize", "--bytes", "--one-file-system", root).split()[0])
        return Image(root, about["Docker"]["config"], num_bytes)

    def wheel_digest(self) -> str:
        """Build the wheel anew and return its digest."""
        (wheel,) = (self._built("wheel", "hydraulis-wheel", "--no-cache") / "dist").glob("*.whl")
        return hashlib.sha256(wheel.read_bytes()).hexdigest()

    def _built(self, target: str, tag: str, caching: str) -> Path:
        secrets = ["--secret", f"id=pip.conf,src={self._folder / 'pip.conf'}"]
        if CERTIFICATES.exists():
            secrets += ["--secret", f"id=ca.crt,src={CERTIFICATES}"]
        volumes = [part for folder in self._pip.folders for part in ("--volume", f"{folder}:{folder}:ro")]
        self.buildah(
            "build", "--isolation", "chroot", "--format", "docker", caching, "--pull=never", "--target", target,
            "--build-arg", f"BASE={BASE}", "--build-arg", "VERSION=1.2.3", *secrets, *volumes,
            "--tag", f"localhost/{tag}", ROOT,
        )  # fmt: skip
        return Path(self.buildah("mount", self.buildah("from", "--pull=never", f"localhost/{tag}")))

    def close(self) -> None:
        """Remove all containers and images."""
        self.buildah("rm", "--all")
        shutil.rmtree(self._folder)
