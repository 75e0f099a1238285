"""What this machine is, what its memory and its processors do meanwhile."""

import ctypes
import gc
import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STAT = Path("/proc/stat")
_RESET_PEAK = "5"
"""What proc(5) says resets the peak of the resident set."""

_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat in which a core works: user, nice, system, both kinds of interrupts, and stolen time."""


def device_name(device: str) -> str:
    """Return what the ranks compute on, for people."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"CPU core ({_processor_name()})"[:1000]


def device_memory_bytes(device: str, num_ranks: int) -> int:
    """Return the memory of one GPU, or each rank's share of this machine's."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // num_ranks


def num_cores() -> int:
    """Return how many cores this machine has."""
    return os.cpu_count() or 1


def busy_s() -> float | None:
    """Return how long the cores of this machine have worked since it started, summed (s); None where that is not told.

    In a container this is the whole machine's.
    """
    try:
        columns = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return float(sum(int(columns[column]) for column in _BUSY)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class PeakMemory:
    """The most memory that this process held at once: what torch allocated on a GPU, or the resident set.

    Parameters
    ----------
    device
        The device that works.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._was_reset = False

    def reset(self) -> None:
        """Give back what is held for nothing and begin anew."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError, AttributeError):  # another C library keeps what it freed, which the peak then includes
            ctypes.CDLL(None).malloc_trim(0)
        self._was_reset = False
        with suppress(OSError):
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
            self._was_reset = True

    def read_bytes(self) -> int | None:
        """Return the peak since the last reset; None where the system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self._was_reset:
            return None
        with suppress(OSError, ValueError, IndexError):
            for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return None


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
