"""Processes in an image's files as a cluster runs them: on a read-only root, without capabilities, in a network apart.

No container engine is needed: `unshare`, mounts and `setpriv` do it. Needs root.
"""

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from built_images import Image, run

_ENTER = """
root=$1; uid=$2; gid=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=256m,mode=1777 tmpfs "$root/tmp"
# Container engines give each container such a file.
echo "127.0.0.1 localhost" > "$root/tmp/hosts"
test -e "$root/etc/hosts" || touch "$root/etc/hosts"
mount --bind "$root/tmp/hosts" "$root/etc/hosts"
mount -o remount,ro,bind "$root"
ip link set lo up
exec chroot "$root" /usr/bin/env -i "$@"
"""


class Confined:
    """One process in an image.

    Parameters
    ----------
    image
        Whose files it runs in, with its environment and user.
    command
        What to run; by default what the image says.
    volumes
        Folders of this machine by where they are mounted.
    variables
        Added to the image's environment.
    beside
        Another one whose network it shares.
    """

    def __init__(
        self,
        image: Image,
        *command: str,
        volumes: Mapping[str, Path],
        variables: Mapping[str, str] | None = None,
        beside: "Confined | None" = None,
    ) -> None:
        uid, gid = image.config["User"].split(":")
        environment = [f"{name}={value}" for name, value in {**image.environment, **(variables or {})}.items()]
        mounts = [part for target, folder in volumes.items() for part in (str(folder), target)]
        keeps = ["/usr/bin/setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs",
                 "--bounding-set=-all", "--inh-caps=-all"]  # fmt: skip
        network = ["--net"] if beside is None else []
        entered = [] if beside is None else ["nsenter", f"--net=/proc/{beside.pid}/ns/net"]
        self._process = subprocess.Popen(
            [*entered, "unshare", "--mount", "--pid", "--ipc", *network, "--fork", "--kill-child",
             "sh", "-euc", _ENTER, "sh", image.root, uid, gid, *mounts, "--", *environment, *keeps,
             *(command or image.command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._image, self._volumes, self._variables = image, volumes, variables

    @property
    def pid(self) -> int:
        """The process as this machine numbers it; inside it is number 1."""
        of_unshare = self._process.pid
        for _ in range(200):
            children = Path(f"/proc/{of_unshare}/task/{of_unshare}/children").read_text().split()
            if children:
                return int(children[0])
            time.sleep(0.05)
        raise AssertionError("it did not start")

    def beside(self, *command: str, timeout: float = 120, **variables: str) -> str:
        """Run another command to its end, in the same image, volumes and network, and return its output."""
        other = Confined(
            self._image,
            *command,
            volumes=self._volumes,
            variables={**(self._variables or {}), **variables},
            beside=self,
        )
        code, out, err = other.wait(timeout)
        assert code == 0, f"{command}: {code}\n{out}\n{err[-4000:]}"
        return out

    def ask(self, script: str) -> str:
        """Run a Python script of this machine's in the process' network."""
        return run("nsenter", f"--net=/proc/{self.pid}/ns/net", "python3", "-c", script, timeout=60)

    def wait(self, timeout: float) -> tuple[int, str, str]:
        """Return exit code, output and errors once it has ended."""
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate(timeout=20)
            raise AssertionError(f"not ended after {timeout} s\n{out}\n{err[-4000:]}") from None
        return self._process.returncode, out, err

    def stop(self, timeout: float = 60) -> tuple[int, str, str]:
        """Send SIGTERM to the process itself, as a container engine does, and wait."""
        subprocess.run(["/bin/kill", f"-{signal.SIGTERM.value}", str(self.pid)], check=True, timeout=20)
        return self.wait(timeout)
