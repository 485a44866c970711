"""Small models of the transformers library, with inputs, and the usual way to divide their matrices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import transformers as hf

import spmd_lab as sl

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["ZOO", "Specimen"]

BATCH, LENGTH, VOCABULARY = 8, 16, 64


@dataclass(frozen=True)
class Specimen:
    """A model, keyword arguments with which it gives a loss, and rules for tensor parallelism over ``tp``."""

    model: nn.Module
    kwargs: dict[str, torch.Tensor]
    rules: dict[str, object] = field(default_factory=dict)

    def trace(self) -> sl.TracedGraph:
        """The traced training step."""
        return sl.trace(self.model, kwargs=self.kwargs, loss=lambda out: out.loss)


def _tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH))


def _columns_then_rows(columns: list[str], rows: list[str]) -> dict[str, object]:
    return sl.colwise(*columns, axis="tp") | sl.rowwise(*rows, axis="tp")


def gpt2() -> Specimen:
    """GPT-2: fused q, k, v in one Conv1D; the head is tied to the embedding."""
    config = hf.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=LENGTH, use_cache=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokens = _tokens()
    rules = _columns_then_rows(["**.c_attn", "**.c_fc"], ["**.attn.c_proj", "**.mlp.c_proj"])
    return Specimen(hf.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}, rules)


def llama() -> Specimen:
    """Llama: rotary embedding, RMS norm, gated perceptron, fewer key and value heads."""
    config = hf.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    tokens = _tokens()
    rules = _columns_then_rows(
        ["**.q_proj", "**.k_proj", "**.v_proj", "**.gate_proj", "**.up_proj"], ["**.o_proj", "**.down_proj"]
    )
    return Specimen(hf.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}, rules)


def bert() -> Specimen:
    """BERT: a padding mask, post-norm, classification."""
    config = hf.BertConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[:, -3:] = 0
    kwargs = {"input_ids": _tokens(), "attention_mask": mask, "labels": torch.randint(2, (BATCH,))}
    rules = _columns_then_rows(
        ["**.query", "**.key", "**.value", "**.intermediate.dense"],
        ["**.attention.output.dense", "**.layer.*.output.dense"],
    )
    return Specimen(hf.BertForSequenceClassification(config), kwargs, rules)


def vit() -> Specimen:
    """ViT: a convolution into patches, a class token."""
    config = hf.ViTConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=8, patch_size=4,
        num_labels=5, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    kwargs = {"pixel_values": torch.randn(BATCH, 3, 8, 8), "labels": torch.randint(5, (BATCH,))}
    rules = _columns_then_rows(["**.q_proj", "**.k_proj", "**.v_proj", "**.fc1"], ["**.o_proj", "**.fc2"])
    return Specimen(hf.ViTForImageClassification(config), kwargs, rules)


ZOO: dict[str, Callable[[], Specimen]] = {make.__name__: make for make in (gpt2, llama, bert, vit)}
