"""Causal attention over packed sequences: a varlen kernel on CUDA, an exact loop elsewhere."""

from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

KERNEL_DTYPES = (torch.float16, torch.bfloat16)
"""What the CUDA kernel computes in; other dtypes take the exact loop."""


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    """Attend causally inside each packed sequence.

    Parameters
    ----------
    query
        Shape (tokens, heads, head size).
    key, value
        Shape (tokens, key-value heads, head size); the heads are a multiple of the key-value heads, each of which
        serves as many neighbouring heads (grouped-query attention).
    cu_seqlens
        Bounds of the sequences, shape (sequences + 1,), int32, from 0 to tokens.
    max_seqlen
        Longest sequence (tokens).

    Returns
    -------
    Tensor
        Shape (tokens, heads, head size); scores are scaled by 1 / sqrt(head size).
    """
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} heads cannot share {key.shape[1]} key-value heads evenly; make the heads a multiple"
        )
    if query.device.type == "cuda" and query.dtype in KERNEL_DTYPES:
        return _varlen_kernel(query, key, value, cu_seqlens, max_seqlen)
    return _sequence_by_sequence(query, key, value, cu_seqlens)


def _varlen_kernel(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - registers CUDA operators when imported

    out = varlen_attn(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if not isinstance(out, Tensor):
        raise TypeError(f"varlen_attn gave a {type(out).__name__} where one tensor was asked for")
    return out


def _sequence_by_sequence(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Run the exact kernel on each sequence; neighbours of one length share a call."""
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        # The fused CPU kernel wants as many key-value heads as heads.
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    runs = [(length, len(list(same))) for length, same in groupby(cu_seqlens.diff().tolist())]
    sizes = [length * count for length, count in runs]
    # One split node writes each gradient once; slicing would fill a whole tensor for every sequence.
    parts = zip(*(torch.split(packed, sizes) for packed in (query, key, value)), strict=True)
    outputs = []
    for (length, count), (of_query, of_key, of_value) in zip(runs, parts, strict=True):
        shape = (count, length, query.shape[1], query.shape[2])
        attended = scaled_dot_product_attention(
            of_query.view(shape).transpose(1, 2),
            of_key.view(shape).transpose(1, 2),
            of_value.view(shape).transpose(1, 2),
            is_causal=True,
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)
