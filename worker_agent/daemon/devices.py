"""What a node computes with: its GPUs where there are some, else its CPU cores."""

import logging
import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from planner_client.contract import NodeDevice

_log = logging.getLogger("hydraulis.agent")

_MODEL_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def node_devices() -> list[NodeDevice]:
    """Return the devices of this machine, by type; blocks while a driver is asked."""
    return _gpus() or [cpu_device(_cpu_info(), _num_cores(), _memory_bytes())]


def gpu_devices(found: list[tuple[str, int]]) -> list[NodeDevice]:
    """Count GPUs by name and memory (bytes)."""
    counts = Counter(found)
    return [
        NodeDevice(name=name[:128] or "GPU", count=counts[name, memory_bytes], memory_bytes=memory_bytes)
        for name, memory_bytes in sorted(counts)
    ]


def cpu_device(cpu_info: str, num_cores: int, memory_bytes: int) -> NodeDevice:
    """Return CPU cores as devices.

    Parameters
    ----------
    cpu_info
        What ``/proc/cpuinfo`` says.
    num_cores
        Cores that may be used.
    memory_bytes
        Memory of the machine, which the cores share.
    """
    named = _MODEL_NAME.search(cpu_info)
    name = f"CPU {named[1].strip()}" if named else "CPU"
    return NodeDevice(name=name[:128], count=num_cores, memory_bytes=memory_bytes // num_cores)


def _gpus() -> list[NodeDevice]:
    """Ask NVML, which needs no CUDA context, or else torch; nothing where neither is there."""
    if find_spec("pynvml") is not None:
        try:
            return gpu_devices(_nvml())
        except Exception as failure:  # noqa: BLE001 - whatever the driver has against it, torch may still see GPUs
            _log.debug("NVML cannot be asked: %s", failure)
    if find_spec("torch") is None or not Path("/dev/nvidiactl").exists():
        return []
    import torch  # noqa: PLC0415 - takes seconds to load, of no use without a GPU

    try:
        # As reported by the driver; memory is not touched, so that training has all of it.
        properties = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as failure:
        _log.warning("gpus_unknown", extra={"fields": {"detail": str(failure)}})
        return []
    return gpu_devices([(device.name, int(device.total_memory)) for device in properties])


def _nvml() -> list[tuple[str, int]]:
    import pynvml  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415 - optional

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [
            (str(pynvml.nvmlDeviceGetName(handle)), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()


def _cpu_info() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _num_cores() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
