"""The model that `hydraulis profile` measures: a shape as it is typed, or a stored model's."""

import re
from pathlib import Path

from worker_agent.executor.shape import DecoderConfig

DEFAULT_MODEL = "layers=2,hidden=64,heads=2,vocab=256"

_FIELDS = ("layers", "hidden", "heads", "vocab", "kv-heads", "ffn")
_NEEDED = _FIELDS[:4]


def read_model(text: str) -> DecoderConfig:
    """Return the decoder that ``--model`` describes.

    Parameters
    ----------
    text
        ``layers=N,hidden=N,heads=N,vocab=N`` with ``kv-heads=N`` and ``ffn=N`` as well where they are not the
        default, or a folder with a Hugging Face ``config.json``.

    Raises
    ------
    ValueError
        If it is neither, or no decoder.
    """
    if "=" not in text:
        return _stored(Path(text))
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _FIELDS or not re.fullmatch(r"[0-9]{1,15}", value):
            raise ValueError(f"--model has {part.strip()!r}; give {DEFAULT_MODEL}, with kv-heads=N and ffn=N if needed")
        if name in found:
            raise ValueError(f"--model gives {name} twice; keep one of them")
        found[name] = int(value)
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise ValueError(f"--model lacks {', '.join(missing)}; give all of {', '.join(_NEEDED)}")
    return DecoderConfig(
        vocab_size=found["vocab"],
        hidden_size=found["hidden"],
        num_layers=found["layers"],
        num_heads=found["heads"],
        num_kv_heads=found.get("kv-heads"),
        ffn_size=found.get("ffn"),
    )


def _stored(folder: Path) -> DecoderConfig:
    from worker_agent.trainer.faults import HuggingFaceRefused  # noqa: PLC0415 - brings torch, which takes seconds
    from worker_agent.trainer.hugging_face import read_config  # noqa: PLC0415

    folder = folder.parent if folder.name == "config.json" else folder
    try:
        return read_config(folder)
    except HuggingFaceRefused as refused:
        raise ValueError(f"--model {folder}: {refused}") from refused
