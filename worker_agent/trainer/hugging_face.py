"""Models in the Hugging Face Llama layout: ``config.json`` and ``model.safetensors``, in one file or several.

Hugging Face stores every matrix [out, in]; the decoder stores those whose input is split over tensor-parallel ranks
[in, out]. Both rotate the first against the second half of each head, so that nothing is permuted.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.faults import HuggingFaceRefused
from worker_agent.trainer.hugging_face_config import config_document, decoder_config_of

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_FILE_BYTES = 5 * 10**9
"""Weights are split over files of at most this size, as Hugging Face does."""

_CARRIED = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "generation_config.json", "*.jinja")
"""Files that belong to a model but not to its weights."""

_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Computed, not trained; old files carry it all the same."""


@dataclass(frozen=True)
class StoredName:
    """How one parameter is stored.

    Attributes
    ----------
    name
        Its Hugging Face name.
    transposed
        Whether it is stored [out, in] where the decoder has [in, out].
    """

    name: str
    transposed: bool = False


_OF_LAYER = {
    "attention_norm.weight": StoredName("input_layernorm.weight"),
    "query": StoredName("self_attn.q_proj.weight"),
    "key": StoredName("self_attn.k_proj.weight"),
    "value": StoredName("self_attn.v_proj.weight"),
    "attention_out": StoredName("self_attn.o_proj.weight", transposed=True),
    "ffn_norm.weight": StoredName("post_attention_layernorm.weight"),
    "gate": StoredName("mlp.gate_proj.weight"),
    "up": StoredName("mlp.up_proj.weight"),
    "down": StoredName("mlp.down_proj.weight", transposed=True),
}


def stored_names(config: DecoderConfig) -> dict[str, StoredName]:
    """Return how each parameter of a decoder is stored, by the decoder's name, in the order of use."""
    names = {"embedding": StoredName("model.embed_tokens.weight")}
    for layer in range(config.num_layers):
        for own, stored in _OF_LAYER.items():
            names[f"layers.{layer}.{own}"] = StoredName(f"model.layers.{layer}.{stored.name}", stored.transposed)
    names["final_norm.weight"] = StoredName("model.norm.weight")
    if not config.tied_embeddings:
        names["head"] = StoredName("lm_head.weight")
    return names


def read_config(directory: Path | str) -> DecoderConfig:
    """Read the shape of a stored model.

    Raises
    ------
    HuggingFaceRefused
        If there is no readable ``config.json``, or this decoder does not represent what it describes.
    """
    return decoder_config_of(_read_json(Path(directory) / CONFIG_FILE))


def read_weights(directory: Path | str, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Read a stored model's weights, one at a time, under the decoder's names and in the order of use.

    Parameters
    ----------
    directory
        Folder with ``config.json`` and ``model.safetensors`` or its index.
    config
        The decoder's shape, from `read_config`.

    Yields
    ------
    tuple of (str, Tensor)
        The decoder's name and the weight in the stored dtype; matrices that the decoder stores [in, out] are
        transposed views.

    Raises
    ------
    HuggingFaceRefused
        If files or weights are missing, not readable, of another shape, or not of this architecture.
    """
    folder = Path(directory)
    files = _file_of_weight(folder)
    names = stored_names(config)
    table = ParameterTable.of(config)
    _check_names(files, names, config, folder)
    for own, stored in names.items():
        weight = _read_weight(folder / files[stored.name], stored.name)
        shape = table.entry(own).shape
        expected = shape[::-1] if stored.transposed else shape
        if tuple(weight.shape) != expected:
            raise HuggingFaceRefused(
                f"{stored.name} in {folder} has shape {tuple(weight.shape)} but config.json makes it {expected}; "
                "the weights belong to another config.json"
            )
        yield own, weight.T if stored.transposed else weight


def write_model(  # noqa: PLR0913 - what to write, where, and in which form
    directory: Path | str,
    config: DecoderConfig,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    max_position_embeddings: int | None = None,
    like: Path | str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a model as Hugging Face reads it.

    Parameters
    ----------
    directory
        Folder; made if needed. Files of a model that is there already are replaced.
    config
        The decoder's shape.
    weights
        The weights by the decoder's names.
    dtype
        Type to store them in.
    max_position_embeddings
        Longest sequence the model was trained on (tokens); by default that of ``like``, or 2048.
    like
        Folder of a stored model whose tokenizer files and further ``config.json`` entries are carried over.
    max_file_bytes
        Larger models are split over several files with an index.

    Raises
    ------
    HuggingFaceRefused
        If a weight is missing, or the folder cannot be written.
    """
    folder = Path(directory)
    missing = sorted(set(stored_names(config)) - set(weights))
    if missing:
        raise HuggingFaceRefused(f"weight {missing[0]!r} is missing ({len(missing)} in all); give all of the decoder")
    base = _read_json(Path(like) / CONFIG_FILE) if like is not None else None
    document = config_document(
        config,
        max_position_embeddings=max_position_embeddings or int((base or {}).get("max_position_embeddings", 2048)),
        dtype=str(dtype).removeprefix("torch."),
        base=base,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_weights(folder)
        try:
            _write_weights(folder, config, weights, dtype, _split(config, weights, dtype, max_file_bytes))
        except (OSError, SafetensorError):
            _remove_weights(folder)  # half a model is none
            raise
        (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        if like is not None and Path(like).resolve() != folder.resolve():
            _carry_over(Path(like), folder)
    except (OSError, SafetensorError) as fault:
        raise HuggingFaceRefused(
            f"a model cannot be written to {folder}: {fault}; name a folder that can be written and has room for it"
        ) from fault


def _carry_over(base: Path, folder: Path) -> None:
    for pattern in _CARRIED:
        for file in base.glob(pattern):
            shutil.copy2(file, folder / file.name)


def _split(
    config: DecoderConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, max_file_bytes: int
) -> list[list[str]]:
    """Deal the decoder's names to files in the order of use; a weight over the limit has a file of its own."""
    files: list[list[str]] = [[]]
    filled_bytes = 0
    for own in stored_names(config):
        size_bytes = weights[own].numel() * dtype.itemsize
        if files[-1] and filled_bytes + size_bytes > max_file_bytes:
            files.append([])
            filled_bytes = 0
        files[-1].append(own)
        filled_bytes += size_bytes
    return files


def _write_weights(
    folder: Path, config: DecoderConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, files: list[list[str]]
) -> None:
    names = stored_names(config)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, held in enumerate(files):
        file = WEIGHTS_FILE if len(files) == 1 else f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        tensors = {}
        for own in held:
            stored = names[own]
            weight = weights[own].detach().to(device="cpu", dtype=dtype)
            tensors[stored.name] = (weight.T if stored.transposed else weight).contiguous()
            weight_map[stored.name] = file
            total_bytes += weight.numel() * dtype.itemsize
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(files) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _remove_weights(folder: Path) -> None:
    """Take away weights of another split, which would stay behind beside the new ones."""
    for file in (*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS_FILE, folder / INDEX_FILE):
        file.unlink(missing_ok=True)


def _file_of_weight(folder: Path) -> dict[str, str]:
    """Return the file that holds each stored weight."""
    if (folder / INDEX_FILE).is_file():
        weight_map = _read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict):
            raise HuggingFaceRefused(f"{folder / INDEX_FILE} has no weight_map; download the model again")
        absent = sorted({str(file) for file in weight_map.values()} - {path.name for path in folder.iterdir()})
        if absent:
            raise HuggingFaceRefused(f"{folder} lacks {absent[0]}, which its index names; download the model again")
        return {str(name): str(file) for name, file in weight_map.items()}
    if not (folder / WEIGHTS_FILE).is_file():
        raise HuggingFaceRefused(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}; save the model as safetensors")
    with _opened(folder / WEIGHTS_FILE) as stored:
        return dict.fromkeys(stored.keys(), WEIGHTS_FILE)


def _check_names(files: Iterable[str], names: Mapping[str, StoredName], config: DecoderConfig, folder: Path) -> None:
    expected = {stored.name for stored in names.values()}
    found = {name for name in files if not name.endswith(_IGNORED_SUFFIX)}
    if config.tied_embeddings:
        found.discard("lm_head.weight")
    missing, strange = sorted(expected - found), sorted(found - expected)
    if missing:
        raise HuggingFaceRefused(
            f"{folder} lacks weight {missing[0]} ({len(missing)} in all) that config.json asks for"
        )
    if strange:
        raise HuggingFaceRefused(
            f"{folder} holds weight {strange[0]} ({len(strange)} in all) that this decoder does not have; "
            "it is of another architecture than its config.json says"
        )


def _read_weight(file: Path, name: str) -> Tensor:
    with _opened(file) as stored:
        try:
            weight: Tensor = stored.get_tensor(name)
        except SafetensorError as unreadable:
            raise HuggingFaceRefused(f"{file} does not hold {name}: {unreadable}") from unreadable
    if not weight.is_floating_point():
        raise HuggingFaceRefused(f"{name} in {file} is of type {weight.dtype}; save the model unquantised first")
    return weight


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as unreadable:
        raise HuggingFaceRefused(f"{file} cannot be read: {unreadable}; download the model again") from unreadable


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as unreadable:
        raise HuggingFaceRefused(
            f"{file} cannot be read: {unreadable}; name a folder with a Hugging Face Llama model"
        ) from unreadable
    if not isinstance(document, dict):
        raise HuggingFaceRefused(f"{file} holds a {type(document).__name__}; a JSON object belongs there")
    return document
