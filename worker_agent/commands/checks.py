"""What `hydraulis doctor` looks at where the agent is installed: what ranks would compute and talk with."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner_client.doctor.finding import Told

GIBIBYTE_BYTES = 1024**3


def look_at_devices() -> "Iterator[Told]":
    """Look at GPUs, collectives and attention kernels."""
    import torch  # noqa: PLC0415 - takes seconds
    import torch.distributed as dist  # noqa: PLC0415

    if torch.cuda.is_available():
        yield from _gpus()
    else:
        cores = len(os.sched_getaffinity(0))
        built = "built for CPUs" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}, finds no GPU"
        verdict, remedy = ("note", "") if torch.version.cuda is None else ("warning", _NO_GPU)
        yield "devices", verdict, f"{cores} CPU cores; torch {torch.__version__} is {built}", remedy
    if not dist.is_available() or not dist.is_gloo_available():
        yield "collectives", "failed", "torch has no gloo", "install a torch with distributed support"
    elif torch.cuda.is_available() and not dist.is_nccl_available():
        yield "collectives", "failed", "there are GPUs, and torch has no NCCL", "install a CUDA build of torch"
    else:
        yield "collectives", "ok", "gloo and NCCL" if dist.is_nccl_available() else "gloo, for CPUs", ""


_NO_GPU = "see whether `nvidia-smi` lists one and CUDA_VISIBLE_DEVICES hides none; on a machine without, this is fine"


def _gpus() -> "Iterator[Told]":
    import torch  # noqa: PLC0415 - takes seconds

    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        seen = f"{facts.name}: {free / GIBIBYTE_BYTES:.1f} of {total / GIBIBYTE_BYTES:.1f} GiB free"
        if free < total / 2:
            yield f"GPU {number}", "warning", seen, "another process holds much of it; profiles assume that none does"
        else:
            yield f"GPU {number}", "ok", seen, ""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401, PLC0415 - whether it is there
    except ImportError:
        yield "attention", "failed", f"torch {torch.__version__} has no varlen attention", "install torch 2.10 or later"
    else:
        yield "attention", "ok", "torch's variable-length kernels", ""
