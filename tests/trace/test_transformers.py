"""Two models of the transformers library, whole, with loss and backward, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from spmd_lab import trace
from tests.trace.programs import check, names, output_names

hf = pytest.importorskip("transformers")


def test_llama() -> None:
    config = hf.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=32, max_position_embeddings=8, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(32, (2, 8))
    traced = check(trace(hf.LlamaForCausalLM(config), tokens, kwargs={"labels": tokens}, loss=lambda out: out.loss))
    assert output_names(traced)[:3] == ["loss", "out.loss", "out.logits"]
    assert names(traced, "input") == ["input_ids", "labels"]
    modules = {traced.source(node).module for node in traced.op_nodes}  # type: ignore[union-attr]
    assert "model.layers.1.self_attn.q_proj" in modules
    files = {traced.source(node).place.partition(":")[0] for node in traced.op_nodes}  # type: ignore[union-attr]
    assert "modeling_llama.py" in files


def test_bert_with_a_mask() -> None:
    config = hf.BertConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2, vocab_size=32,
        max_position_embeddings=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    tokens, mask = torch.randint(32, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    model = hf.BertForMaskedLM(config)
    traced = check(trace(model, tokens, kwargs={"labels": tokens, "attention_mask": mask}, loss=lambda out: out.loss))
    assert traced.input("cls.predictions.decoder.weight").name == "bert.embeddings.word_embeddings.weight"
