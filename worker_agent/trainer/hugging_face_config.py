"""Hugging Face's ``config.json`` of a Llama model and this project's `DecoderConfig`, one from the other: pure."""

from collections.abc import Mapping
from typing import Any

from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.faults import HuggingFaceRefused

ARCHITECTURE = "LlamaForCausalLM"
MODEL_TYPE = "llama"

_DEFAULT_ROPE_BASE = 10_000.0
_DEFAULT_NORM_EPS = 1e-6
"""What ``transformers.LlamaConfig`` takes where the file says nothing."""

_REMEDY = "train another model, or convert it to a plain Llama first"


def decoder_config_of(document: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder that a ``config.json`` describes.

    Parameters
    ----------
    document
        The file's content.

    Raises
    ------
    HuggingFaceRefused
        If it is of another architecture, or asks for something this decoder does not do; the message names it.
    """
    _refuse_unsupported(document)
    try:
        config = DecoderConfig(
            vocab_size=_whole_number(document, "vocab_size"),
            hidden_size=_whole_number(document, "hidden_size"),
            num_layers=_whole_number(document, "num_hidden_layers"),
            num_heads=_whole_number(document, "num_attention_heads"),
            num_kv_heads=_whole_number(document, "num_key_value_heads", document.get("num_attention_heads")),
            ffn_size=_whole_number(document, "intermediate_size"),
            rope_base=_rope_base(document),
            norm_eps=float(document.get("rms_norm_eps", _DEFAULT_NORM_EPS)),
            tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        )
    except HuggingFaceRefused:
        raise
    except (TypeError, ValueError) as refused:
        raise HuggingFaceRefused(f"config.json describes no decoder: {refused}") from refused
    head_dim = document.get("head_dim")
    if head_dim is not None and head_dim != config.head_size:
        raise HuggingFaceRefused(
            f"config.json has head_dim {head_dim} but this decoder's heads are hidden_size / num_attention_heads = "
            f"{config.head_size} wide; {_REMEDY}"
        )
    return config


def config_document(
    config: DecoderConfig, *, max_position_embeddings: int, dtype: str, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the ``config.json`` of a decoder.

    Parameters
    ----------
    config
        The decoder's shape.
    max_position_embeddings
        Longest sequence the model was trained on (tokens); the decoder itself has no limit.
    dtype
        Name of the weights' type, such as ``float32``.
    base
        A document whose other entries are kept (ids of special tokens, for instance).
    """
    document = dict(base or {})
    # Where both spellings of one entry stand, readers disagree on which to believe.
    for stale in ("rope_scaling", "rope_parameters", "dtype", "torch_dtype", "transformers_version"):
        document.pop(stale, None)
    return document | {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
    }


def _refuse_unsupported(document: Mapping[str, Any]) -> None:
    model_type = document.get("model_type")
    architectures = document.get("architectures") or [ARCHITECTURE]
    if model_type != MODEL_TYPE or ARCHITECTURE not in architectures:
        raise HuggingFaceRefused(
            f"config.json is of model_type {model_type!r}, architectures {list(architectures)}; only {MODEL_TYPE!r} "
            f"({ARCHITECTURE}) is read here: {_REMEDY}"
        )
    for name in ("attention_bias", "mlp_bias"):
        if document.get(name):
            raise HuggingFaceRefused(f"config.json sets {name} but this decoder has no bias; {_REMEDY}")
    activation = document.get("hidden_act", "silu")
    if activation != "silu":
        raise HuggingFaceRefused(f"config.json has hidden_act {activation!r} but this decoder has silu; {_REMEDY}")
    if document.get("attention_dropout"):
        raise HuggingFaceRefused(
            f"config.json has attention_dropout {document['attention_dropout']} but this decoder drops nothing out; "
            "set it to 0"
        )
    if document.get("pretraining_tp", 1) != 1:
        raise HuggingFaceRefused(
            f"config.json has pretraining_tp {document['pretraining_tp']}, sums in parts that round otherwise; "
            "set it to 1 if small differences of rounding do not matter"
        )
    if document.get("quantization_config"):
        raise HuggingFaceRefused("config.json has a quantization_config; save the model unquantised first")
    for name in ("rope_scaling", "rope_parameters"):
        rope = document.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise HuggingFaceRefused(
                f"config.json has {name} of type {kind!r} but this decoder's rotary embedding is not scaled; {_REMEDY}"
            )


def _rope_base(document: Mapping[str, Any]) -> float:
    parameters = document.get("rope_parameters") or {}
    return float(parameters.get("rope_theta", document.get("rope_theta", _DEFAULT_ROPE_BASE)))


def _whole_number(document: Mapping[str, Any], name: str, default: Any = None) -> int:
    value = document.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise HuggingFaceRefused(f"config.json has {name} {value!r}; a whole number belongs there")
    return value
