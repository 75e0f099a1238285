import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import reference_logits, reference_loss
from torch import Tensor

from worker_agent.executor.attention import varlen_attention
from worker_agent.executor.loss import next_token_targets, scaled_loss, sequence_losses, token_losses
from worker_agent.executor.model import Decoder, DecoderConfig, rotary_table

CONFIG = DecoderConfig(vocab_size=19, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2)


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def draw_tokens(num_tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder(CONFIG, seed=3, dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**31 - 1))
def test_packed_sequences_do_not_see_each_other(lengths: list[int], seed: int) -> None:
    """Hold for any packing.

    1. The logits of packed sequences are those of each sequence alone, computed densely by other code.
    2. The summed loss of the pack is the sum of the losses of its sequences, each also available alone.
    """
    model = Decoder(CONFIG, seed=3, dtype=torch.float64)
    tokens = draw_tokens(sum(lengths), seed)
    cu_seqlens = bounds(lengths)
    logits = model(tokens, cu_seqlens, max(lengths))
    sequences = torch.split(tokens, lengths)
    torch.testing.assert_close(
        logits, torch.cat([reference_logits(model, one) for one in sequences]), rtol=0, atol=1e-12
    )
    losses = token_losses(logits, next_token_targets(tokens, cu_seqlens))
    expected = torch.stack([reference_loss(model, one) for one in sequences])
    torch.testing.assert_close(sequence_losses(losses, cu_seqlens), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(losses.sum(), expected.sum(), rtol=0, atol=1e-11)


def test_rotary_positions_restart_in_every_sequence() -> None:
    lengths = [3, 1, 5]
    packed = rotary_table(bounds(lengths), sum(lengths), CONFIG, torch.float64)
    alone = [rotary_table(bounds([length]), length, CONFIG, torch.float64) for length in lengths]
    for part, parts in zip(packed, zip(*alone, strict=True), strict=True):
        assert torch.equal(part, torch.cat(parts))


def test_changing_one_sequence_changes_no_other_sequences_logits(model: Decoder) -> None:
    lengths = [5, 7, 3]
    tokens = draw_tokens(15)
    changed = tokens.clone()
    changed[5:12] = (changed[5:12] + 1) % CONFIG.vocab_size
    before, after = (model(these, bounds(lengths), 7) for these in (tokens, changed))
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[12:], after[12:])
    assert not torch.equal(before[5:12], after[5:12])


def test_a_token_does_not_see_its_successors(model: Decoder) -> None:
    tokens = draw_tokens(8)
    changed = tokens.clone()
    changed[5] = (changed[5] + 1) % CONFIG.vocab_size
    before, after = (model(these, bounds([8]), 8) for these in (tokens, changed))
    torch.testing.assert_close(before[:5], after[:5], rtol=0, atol=1e-14)
    assert not torch.allclose(before[5:], after[5:])


def test_attention_differentiates_correctly_with_shared_key_value_heads() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(9, heads, 4, dtype=torch.float64, generator=generator, requires_grad=True) for heads in (4, 2, 2)
    )
    cu_seqlens = bounds([1, 3, 3, 2])
    assert torch.autograd.gradcheck(lambda *parts: varlen_attention(*parts, cu_seqlens, 3), (query, key, value))


def test_attention_heads_that_do_not_divide_are_refused() -> None:
    query, key = torch.zeros(2, 3, 4), torch.zeros(2, 2, 4)
    with pytest.raises(ValueError, match="3 heads cannot share 2 key-value heads"):
        varlen_attention(query, key, key, bounds([2]), 2)


def test_padding_after_a_sequence_changes_neither_its_loss_nor_a_gradient(model: Decoder) -> None:
    first, second = draw_tokens(5, 1), draw_tokens(2, 2)
    padding = torch.zeros(3, dtype=torch.int64)
    packs = [
        (torch.cat((first, second)), bounds([5, 2]), None),
        (torch.cat((first, padding, second, padding[:2])), bounds([8, 4]), torch.tensor([5, 2])),
    ]
    outcomes = []
    for tokens, cu_seqlens, lengths in packs:
        model.zero_grad()
        losses = token_losses(model(tokens, cu_seqlens, 8), next_token_targets(tokens, cu_seqlens, lengths))
        scaled_loss(losses, 5).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        outcomes.append((sequence_losses(losses, cu_seqlens), gradient))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=0, atol=1e-13)


def test_a_sequence_of_one_token_has_no_target_and_no_loss(model: Decoder) -> None:
    tokens, cu_seqlens = draw_tokens(3), bounds([1, 1, 1])
    targets = next_token_targets(tokens, cu_seqlens)
    assert (targets == -100).all()
    losses = token_losses(model(tokens, cu_seqlens, 1), targets)
    assert sequence_losses(losses, cu_seqlens).tolist() == [0.0, 0.0, 0.0]
    assert scaled_loss(losses, 0).item() == 0.0


def test_half_precision_logits_give_fp32_losses() -> None:
    logits = torch.randn(4, 19, dtype=torch.bfloat16)
    losses = token_losses(logits, torch.tensor([1, 2, 3, -100]))
    assert losses.dtype == torch.float32
    assert losses[3] == 0


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = Decoder(CONFIG, seed=5)
    torch.manual_seed(2)
    torch.rand(100)
    same, other = Decoder(CONFIG, seed=5, dtype=torch.float64), Decoder(CONFIG, seed=6)
    for (name, first), second, third in zip(one.named_parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(first.double(), second), name
        assert first.dim() == 1 or not torch.equal(first, third), name


def test_a_tied_head_is_the_embedding_and_is_counted_once() -> None:
    free = Decoder(CONFIG)
    tied = Decoder(dataclasses.replace(CONFIG, tied_embeddings=True))
    assert free.num_parameters - tied.num_parameters == CONFIG.vocab_size * CONFIG.hidden_size
    tied(draw_tokens(4), bounds([4]), 4).sum().backward()
    assert tied.embedding.grad is tied.head.grad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"hidden_size": 12}, "hidden_size 12 does not divide into 4 heads of even size"),
        ({"num_kv_heads": 3}, "4 heads cannot share 3 key-value heads"),
    ],
)
def test_a_shape_no_decoder_can_have_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.gpu
@pytest.mark.parametrize("num_kv_heads", [8, 2])
def test_the_cuda_kernel_agrees_with_the_exact_loop(num_kv_heads: int) -> None:
    lengths = [1, 300, 64, 64, 7]
    generator = torch.Generator().manual_seed(0)
    exact = [
        torch.randn(sum(lengths), heads, 64, dtype=torch.float64, generator=generator).bfloat16()
        for heads in (8, num_kv_heads, num_kv_heads)
    ]
    wanted = torch.randn(sum(lengths), 8, 64, dtype=torch.float64, generator=generator)
    outcomes = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.bfloat16)):
        parts = [part.to(device, dtype).detach().requires_grad_() for part in exact]
        out = varlen_attention(*parts, bounds(lengths).to(device), max(lengths))
        out.backward(wanted.to(device, dtype))
        outcomes.append([value.detach().cpu().double() for value in (out, *(part.grad for part in parts))])
    for on_cpu, on_cuda in zip(*outcomes, strict=True):
        assert ((on_cuda - on_cpu).norm() / on_cpu.norm()).item() < 1e-2
