"""Models in the Hugging Face layout against `transformers` itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from worker_agent.executor.model import Decoder, rotary_table
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.faults import HuggingFaceRefused
from worker_agent.trainer.hugging_face import read_config, read_weights, write_model
from worker_agent.trainer.hugging_face_config import config_document, decoder_config_of

LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-3,
    "rope_theta": 500.0,
    "max_position_embeddings": 128,
}
PACKED = (7, 1, 12)
"""Lengths (tokens) of the sequences that logits are compared on."""


def llama(folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Return a random model and store it; norms and matrices are far from their initial values."""
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=tied))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    model = model.to(dtype).eval()
    model.save_pretrained(folder)
    return model


def decoder(folder: Path, dtype: torch.dtype) -> Decoder:
    config = read_config(folder)
    model = Decoder(config, dtype=dtype)
    names = dict(model.named_parameters())
    read = dict(read_weights(folder, config))
    assert set(read) == set(names)
    with torch.no_grad():
        for name, weight in read.items():
            names[name].copy_(weight)
    return model


@torch.no_grad()
def own_logits(model: Decoder) -> Tensor:
    cu_seqlens = torch.tensor([0, *torch.tensor(PACKED).cumsum(0)], dtype=torch.int32)
    return model(tokens(), cu_seqlens, max(PACKED))


@torch.no_grad()
def their_logits(model: LlamaForCausalLM) -> Tensor:
    return torch.cat([model(sequence[None]).logits[0] for sequence in torch.split(tokens(), PACKED)])


def tokens() -> Tensor:
    return torch.randint(0, LLAMA["vocab_size"], (sum(PACKED),), generator=torch.Generator().manual_seed(3))


class _WideRotary(torch.nn.Module):
    """Rotary angles in fp64, where transformers computes them in fp32 whatever the model's dtype."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config

    def forward(self, _hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        num_tokens = position_ids.shape[-1]
        cosine, sine = rotary_table(
            torch.tensor([0, num_tokens], dtype=torch.int32), num_tokens, self._config, torch.float64
        )
        return tuple(torch.cat((half, half), dim=-1)[:, 0].unsqueeze(0) for half in (cosine, sine))  # type: ignore[return-value]


def widen(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, config: DecoderConfig) -> None:
    """Lift the two places where transformers computes in fp32 whatever the model's dtype."""

    def norm(self: LlamaRMSNorm, hidden: Tensor) -> Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", norm)
    model.model.rotary_emb = _WideRotary(config)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_read_from_hugging_face_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:  # noqa: FBT001 - pytest gives parameters by position or name as it likes
    theirs = their_logits(llama(tmp_path, tied=tied))
    own = own_logits(decoder(tmp_path, torch.float32))
    assert theirs.abs().max() > 1
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)


def test_in_fp64_the_logits_agree_to_the_last_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(tmp_path, dtype=torch.float64)
    own = decoder(tmp_path, torch.float64)
    widen(model, monkeypatch, own.config)
    torch.testing.assert_close(own_logits(own), their_logits(model), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("max_file_bytes", [10**9, 20_000])
def test_transformers_reads_what_is_written(tmp_path: Path, tied: bool, max_file_bytes: int) -> None:  # noqa: FBT001 - as above
    config = DecoderConfig(61, 32, 2, 4, num_kv_heads=2, rope_base=300.0, tied_embeddings=tied)
    model = Decoder(config, seed=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    write_model(tmp_path, config, dict(model.named_parameters()), max_file_bytes=max_file_bytes)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_file_bytes == 20_000)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(own_logits(model), their_logits(theirs.eval()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_file_bytes", [10**9, 20_000])
def test_a_model_comes_back_as_it_was_written(tmp_path: Path, max_file_bytes: int) -> None:
    config = DecoderConfig(61, 32, 2, 4, ffn_size=40, norm_eps=1e-4)
    weights = dict(Decoder(config, seed=4).named_parameters())
    for limit in (7_000, max_file_bytes):  # the second takes the place of the first
        write_model(tmp_path, config, weights, max_file_bytes=limit)
    assert read_config(tmp_path) == DecoderConfig(61, 32, 2, 4, num_kv_heads=4, ffn_size=40, norm_eps=1e-4)
    for name, weight in read_weights(tmp_path, config):
        assert torch.equal(weight, weights[name]), name


def test_a_model_is_stored_in_the_dtype_asked_for(tmp_path: Path) -> None:
    config = DecoderConfig(61, 32, 1, 4)
    write_model(tmp_path, config, dict(Decoder(config).named_parameters()), dtype=torch.bfloat16)
    assert {weight.dtype for weight in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoConfig.from_pretrained(tmp_path).dtype == torch.bfloat16


def test_tokenizer_and_further_entries_are_carried_over(tmp_path: Path) -> None:
    base, written = tmp_path / "base", tmp_path / "written"
    llama(base)
    (base / "tokenizer.json").write_text("{}")
    document = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(document | {"eos_token_id": 17, "rope_scaling": None}))
    config = read_config(base)
    write_model(written, config, dict(read_weights(base, config)), like=base)
    kept = AutoConfig.from_pretrained(written)
    assert (kept.eos_token_id, kept.max_position_embeddings) == (17, 128)
    assert kept.rope_parameters["rope_theta"] == 500.0
    assert (written / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"model_type": "mistral"}, "model_type 'mistral'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling of type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters of type 'yarn'"),
        ({"pretraining_tp": 2}, "pretraining_tp 2"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size None"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"rms_norm_eps": "small"}, "describes no decoder"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused_by_name(entry: dict[str, Any], message: str) -> None:
    document = {"model_type": "llama", **LLAMA, **entry}
    with pytest.raises(HuggingFaceRefused, match=message):
        decoder_config_of(document)


def test_old_and_new_spellings_of_the_rotary_base_are_read() -> None:
    old = {"model_type": "llama", **LLAMA}
    new = {**old, "rope_theta": None, "rope_parameters": {"rope_theta": 700.0, "rope_type": "default"}}
    assert decoder_config_of(old).rope_base == 500.0
    assert decoder_config_of(new).rope_base == 700.0


def test_a_document_says_what_the_decoder_is() -> None:
    config = DecoderConfig(
        61, 32, 2, 4, num_kv_heads=2, ffn_size=40, rope_base=9.0, norm_eps=1e-4, tied_embeddings=True
    )
    assert decoder_config_of(config_document(config, max_position_embeddings=10, dtype="float32")) == config


def spoil(folder: Path, what: str) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    if what == "a weight missing":
        del weights["model.norm.weight"]
    elif what == "a weight too many":
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    elif what == "another shape":
        weights["model.layers.1.mlp.down_proj.weight"] = torch.zeros(48, 32)
    elif what == "whole numbers":
        weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.int8)
    save_file(weights, file)
    if what == "cut off":
        file.write_bytes(file.read_bytes()[:1000])
    elif what == "no file":
        file.unlink()
    elif what == "a file of the index missing":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a weight missing", "lacks weight model.norm.weight"),
        ("a weight too many", "holds weight model.layers.0.self_attn.q_proj.bias"),
        ("another shape", r"down_proj.weight in .* has shape \(48, 32\) but config.json makes it \(32, 48\)"),
        ("whole numbers", "lm_head.weight .* is of type torch.int8"),
        ("cut off", "cannot be read"),
        ("no file", "has neither model.safetensors nor"),
        ("a file of the index missing", "lacks gone.safetensors"),
    ],
)
def test_files_that_are_not_whole_are_refused_by_name(tmp_path: Path, what: str, message: str) -> None:
    llama(tmp_path)
    spoil(tmp_path, what)
    with pytest.raises(HuggingFaceRefused, match=message):
        list(read_weights(tmp_path, read_config(tmp_path)))


def test_buffers_and_copies_that_old_files_carry_are_passed_over(tmp_path: Path) -> None:
    llama(tmp_path, tied=True)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, file)
    assert "head" not in dict(read_weights(tmp_path, read_config(tmp_path)))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceRefused, match=r"config.json cannot be read: .* name a folder"):
        read_config(tmp_path)


def test_a_weight_that_is_missing_is_not_written(tmp_path: Path) -> None:
    config = DecoderConfig(61, 32, 1, 4)
    weights = dict(Decoder(config).named_parameters())
    del weights["layers.0.down"]
    with pytest.raises(HuggingFaceRefused, match=r"weight 'layers.0.down' is missing \(1 in all\)"):
        write_model(tmp_path, config, weights)
