"""Built-in streams: sequence lengths of real corpora in corpus order (``README.md`` names their sources)."""

import gzip
from importlib.resources import files

STREAMS = ("alpacaeval", "azure-conv", "github", "reuters21578", "win32docs")
"""Names of the built-in streams."""


def builtin_stream(name: str) -> list[int]:
    """Read a built-in stream.

    Parameters
    ----------
    name
        One of `STREAMS`.

    Returns
    -------
    list[int]
        Lengths in tokens, in corpus order.

    Raises
    ------
    ValueError
        If there is no stream of that name.
    """
    if name not in STREAMS:
        raise ValueError(f"there is no stream {name!r}; use {', '.join(STREAMS)}")
    packed = files(__name__).joinpath(f"stream-{name}.txt.gz").read_bytes()
    return [int(line) for line in gzip.decompress(packed).split()]
