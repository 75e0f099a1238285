"""A PostgreSQL server of the tests' own, which ends with them."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

START_S = 30.0
STOP_S = 30.0

_WATCHED = """
dir=$1; shift
"$@" >>"$dir/log" 2>&1 </dev/null &
server=$!
read -r ignored
kill -QUIT "$server"
wait "$server"
[ "$ignored" = keep ] || rm -rf "$dir"
"""
"""The server ends when its standard input does: when it is told to, or when the tests died, however they did."""


class PostgresServer:
    """One server with a data directory and a socket of its own; durable as in production.

    Parameters
    ----------
    directory
        Where both are.
    programs
        Where PostgreSQL's programs are.
    user
        Whom the server runs as; None for whoever runs the tests.
    """

    def __init__(self, directory: Path, programs: Path, user: str | None) -> None:
        self._directory = directory
        self._programs = programs
        self._user = user
        self._process: subprocess.Popen[str] | None = None
        # ICU's order of texts is that of no database that orders by character code, so that tests see a difference.
        self._run("initdb", "-D", self._data, "-U", "planner", "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")  # fmt: skip
        self.start()

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def start(self) -> None:
        """Start the server and wait until it lets anybody in."""
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", str(self._directory), str(self._programs / "postgres"), "-D", self._data,
             "-k", str(self._directory), "-c", "listen_addresses=", "-c", "max_connections=200",
             "-c", "shared_buffers=32MB", "-c", "fsync=on"],
            stdin=subprocess.PIPE, text=True, cwd="/", user=self._user, group=self._group, extra_groups=self._no_groups,
        )  # fmt: skip
        ends_at = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.conninfo("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > ends_at or self._process.poll() is not None:
                    log = (self._directory / "log").read_text(errors="replace")[-2000:]
                    pytest.fail(f"the PostgreSQL server does not start: {error}\n{log}")
                time.sleep(0.02)
            else:
                return

    def stop(self, *, keep: bool = True) -> None:
        """Stop the server as a crash would; what was committed is there when it starts again."""
        if self._process is None or self._process.stdin is None:
            return
        if keep:
            self._process.stdin.write("keep\n")
        self._process.stdin.close()
        self._process.wait(STOP_S)
        self._process = None

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the server."""
        leader = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        for process in [leader, *map(int, children)]:
            os.kill(process, number)

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"planner_{uuid.uuid4().hex[:12]}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://planner@/{name}?host={self._directory}"

    def conninfo(self, name: str) -> str:
        """Return how psycopg names a database."""
        return f"host={self._directory} user=planner dbname={name}"

    def execute(self, name: str, *statements: str) -> None:
        """Run statements in a database, each by itself."""
        with psycopg.connect(self.conninfo(name), autocommit=True, connect_timeout=5) as connection:
            for statement in statements:
                connection.execute(statement)

    def cut_all_connections(self, name: str) -> int:
        """End all connections to a database from the server's side; return how many there were."""
        with psycopg.connect(self.conninfo("postgres"), autocommit=True, connect_timeout=5) as connection:
            cut = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            ).fetchall()
        return len(cut)

    @property
    def _group(self) -> int | None:
        return None if self._user is None else pwd.getpwnam(self._user).pw_gid

    @property
    def _no_groups(self) -> list[int] | None:
        return None if self._user is None else []

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd="/", user=self._user, group=self._group, extra_groups=self._no_groups,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            pytest.fail(f"{program} failed: {done.stdout}{done.stderr}")


def database_name(url: str) -> str:
    """Return the name of the database in a URL of `PostgresServer`."""
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Run a server; fails the test where PostgreSQL is not installed."""
    programs = _programs()
    directory = Path(tempfile.mkdtemp(prefix="planner-pg-"))
    user = None
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        user = "postgres" if _has_user("postgres") else "nobody"
        os.chown(directory, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    server: PostgresServer | None = None
    try:
        server = PostgresServer(directory, programs, user)
        yield server
    finally:
        if server is not None:
            server.stop(keep=False)
        shutil.rmtree(directory, ignore_errors=True)


def _programs() -> Path:
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name.split(".")[0]))
    for directory in found:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    pytest.fail(
        "these tests need a PostgreSQL server (15 or later) and find none: install it, on Debian or Ubuntu with "
        "`apt-get install -y postgresql`; it need not run"
    )


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
