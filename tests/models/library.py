"""Small models of the transformers library, with inputs, and the usual way to divide their matrices."""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers as hf

from tests.models.specimen import Specimen, columns_then_rows

__all__ = ["MODELS"]

BATCH, LENGTH, VOCABULARY = 8, 16, 64


def _tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH))


def gpt2() -> Specimen:
    """GPT-2: fused q, k, v in one Conv1D; the head is tied to the embedding."""
    config = hf.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=LENGTH, use_cache=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokens = _tokens()
    rules = columns_then_rows(["**.c_attn", "**.c_fc"], ["**.attn.c_proj", "**.mlp.c_proj"])
    return Specimen(hf.GPT2LMHeadModel(config), kwargs={"input_ids": tokens, "labels": tokens}, rules=rules)


def gpt2_with_dropout() -> Specimen:
    """GPT-2 as it trains: what is added to the residual stream, the embedding and attention are dropped by chance."""
    specimen = gpt2()
    config = specimen.model.config
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1
    return replace(specimen, model=hf.GPT2LMHeadModel(config).train())


def llama() -> Specimen:
    """Llama: rotary embedding, RMS norm, gated perceptron, fewer key and value heads."""
    config = hf.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    tokens = _tokens()
    rules = columns_then_rows(
        ["**.q_proj", "**.k_proj", "**.v_proj", "**.gate_proj", "**.up_proj"], ["**.o_proj", "**.down_proj"]
    )
    return Specimen(hf.LlamaForCausalLM(config), kwargs={"input_ids": tokens, "labels": tokens}, rules=rules)


def bert() -> Specimen:
    """BERT: a padding mask, post-norm, classification."""
    config = hf.BertConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[:, -3:] = 0
    kwargs = {"input_ids": _tokens(), "attention_mask": mask, "labels": torch.randint(2, (BATCH,))}
    rules = columns_then_rows(
        ["**.query", "**.key", "**.value", "**.intermediate.dense"],
        ["**.attention.output.dense", "**.layer.*.output.dense"],
    )
    return Specimen(hf.BertForSequenceClassification(config), kwargs=kwargs, rules=rules)


def vit() -> Specimen:
    """ViT: a convolution into patches, a class token."""
    config = hf.ViTConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=8, patch_size=4,
        num_labels=5, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    kwargs = {"pixel_values": torch.randn(BATCH, 3, 8, 8), "labels": torch.randint(5, (BATCH,))}
    rules = columns_then_rows(["**.q_proj", "**.k_proj", "**.v_proj", "**.fc1"], ["**.o_proj", "**.fc2"])
    return Specimen(hf.ViTForImageClassification(config), kwargs=kwargs, rules=rules)


def t5() -> Specimen:
    """T5: encoder and decoder, relative positions as a bias of the attention, a gated perceptron."""
    config = hf.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=VOCABULARY,
        relative_attention_num_buckets=8, dropout_rate=0, feed_forward_proj="gated-gelu", use_cache=False,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    labels = torch.randint(VOCABULARY, (5, 6))
    labels[0, 3:] = -100
    rules = columns_then_rows(["**.q", "**.k", "**.v", "**.wi_0", "**.wi_1"], ["**.o", "**.wo"])
    kwargs = {"input_ids": torch.randint(VOCABULARY, (5, 7)), "labels": labels}
    return Specimen(hf.T5ForConditionalGeneration(config), kwargs=kwargs, rules=rules)


def mixtral() -> Specimen:
    """Mixtral: a router, and experts as one batch of matrices."""
    config = hf.MixtralConfig(
        num_hidden_layers=1, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_local_experts=4, use_cache=False,
        experts_implementation="batched_mm",
    )  # fmt: skip
    tokens = torch.randint(VOCABULARY, (8, 4))
    rules = columns_then_rows(["**.q_proj", "**.k_proj", "**.v_proj"], ["**.o_proj"])
    rules |= {"**.gate_up_proj": "e (2 h/tp) d", "**.down_proj": "e d h/tp"}
    return Specimen(hf.MixtralForCausalLM(config), kwargs={"input_ids": tokens, "labels": tokens}, rules=rules)


MODELS = (gpt2, llama, bert, vit, t5, mixtral)
