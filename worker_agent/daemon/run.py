"""An agent from its start to its end."""

import asyncio
import logging
import secrets
import socket
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version

import uvicorn

from planner_client.contract import NodeDevice, NodeReport
from planner_client.errors import RequestRefused
from worker_agent.daemon.api import LocalApi
from worker_agent.daemon.desk import AgentDesk
from worker_agent.daemon.devices import node_devices
from worker_agent.daemon.heartbeat import REFUSES_CALLER, Heartbeat
from worker_agent.daemon.jobs import KnownJobs
from worker_agent.daemon.metrics import AgentMetrics
from worker_agent.daemon.planner_link import PlannerLink
from worker_agent.daemon.settings import AgentSettings
from worker_agent.daemon.sockets import identity_of, listen_on_port, listen_on_socket, remove_socket
from worker_agent.daemon.systemd import notify, watchdog_s
from worker_agent.daemon.timings_desk import TimingsDesk
from worker_agent.daemon.wire import AgentStatus

DISTRIBUTION = "hydraulis-planner"
LOOK_S = 0.05

_log = logging.getLogger("hydraulis.agent")


class RefusedByPlanner(Exception):  # noqa: N818 - names what the operator met
    """The planner refuses this agent: its token is missing, wrong, or not good enough."""


def run_agent(settings: AgentSettings) -> None:
    """Run an agent until it is told to stop.

    Raises
    ------
    worker_agent.daemon.sockets.AddressTaken, worker_agent.daemon.sockets.AddressUnusable
        If it cannot listen.
    RefusedByPlanner
        If the planner refuses it at the start.
    """
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        addresses: list[str] = []
        if settings.socket_path is not None:
            listeners.append(stack.enter_context(listen_on_socket(settings.socket_path)))
            stack.callback(remove_socket, settings.socket_path, identity_of(settings.socket_path))
            addresses.append(f"unix:{settings.socket_path}")
        if settings.port is not None:
            listeners.append(stack.enter_context(listen_on_port(settings.port)))
            addresses.append("http://{}:{}".format(*listeners[-1].getsockname()))
        asyncio.run(_Agent(settings, node_devices()).run(listeners, addresses))


class _Agent:
    """The parts of one agent, put together on its event loop."""

    def __init__(self, settings: AgentSettings, devices: list[NodeDevice]) -> None:
        self._settings = settings
        self._devices = devices
        self._version = version(DISTRIBUTION)
        self._instance = secrets.token_hex(8)

    async def run(self, listeners: list[socket.socket], addresses: list[str]) -> None:
        settings = self._settings
        metrics = AgentMetrics(self._version)
        link = PlannerLink(settings)
        link.on_error = metrics.planner_errors.inc
        jobs = KnownJobs(link, settings.node, settings.job)
        desk = AgentDesk(settings, link, jobs, metrics)
        timings = TimingsDesk(link, jobs, metrics, desk.plan_of)
        report = NodeReport(
            agent_version=self._version, devices=self._devices, job=settings.job, every_s=settings.heartbeat_s
        )
        heartbeat = Heartbeat(link, metrics, settings.node, report)
        app = LocalApi(
            desk=desk,
            timings=timings,
            jobs=jobs,
            link=link,
            metrics=metrics,
            status=lambda: self._status(link, desk, timings),
        ).app()
        try:
            _refuse_to_start(await heartbeat.once())
            heartbeat.start()
            timings.start()
            await _serve(app, listeners, addresses, desk, settings)
        finally:
            notify("STOPPING=1")
            await heartbeat.close()
            await desk.close()
            await timings.close(settings.drain_s)
            await link.close()

    def _status(self, link: PlannerLink, desk: AgentDesk, timings: TimingsDesk) -> AgentStatus:
        seen_at = link.answered_at
        return AgentStatus(
            node=self._settings.node,
            agent_version=self._version,
            instance=self._instance,
            planner_url=self._settings.planner_url,
            job=self._settings.job,
            devices=self._devices,
            is_planner_reached=link.is_reached,
            planner_seen_age_s=None if seen_at is None else time.monotonic() - seen_at,
            num_iterations=desk.num_iterations,
            num_timings_waiting=timings.num_waiting,
        )


def _refuse_to_start(refused: RequestRefused | None) -> None:
    """End where the planner does not take this caller; an older planner that knows no nodes still plans."""
    if refused is not None and refused.problem.code in REFUSES_CALLER:
        raise RefusedByPlanner(
            f"the planner refuses this agent: {refused}; give a token with scope plan by --token-file"
        )


async def _serve(
    app: object, listeners: list[socket.socket], addresses: list[str], desk: AgentDesk, settings: AgentSettings
) -> None:
    """Serve until a signal, which lets those who wait go first."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # any ASGI app will do
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=listeners))
    while not serving.done() and not server.started:
        await asyncio.wait({serving}, timeout=0.01)
    if not serving.done():
        _log.info("listening", extra={"fields": {"node": settings.node, "addresses": addresses}})
        sys.stdout.write("".join(f"listening on {address}\n" for address in addresses))
        sys.stdout.flush()
        notify(f"READY=1\nSTATUS=node {settings.node} reports to {settings.planner_url}")
    every_s = watchdog_s()
    next_at = time.monotonic()
    while not serving.done():
        if server.should_exit:
            desk.begin_shutdown()
            break
        if every_s is not None and time.monotonic() >= next_at:
            notify("WATCHDOG=1")
            next_at = time.monotonic() + every_s
        await asyncio.wait({serving}, timeout=LOOK_S)
    await serving
