#!/usr/bin/env python3
"""Writes one random checkpoint twice: Hugging Face safetensors and GGUF, the same BF16 bits.

usage: mkmodel.py OUT    makes OUT/hf/ and OUT/model-bf16.gguf, 7.7 GB each

Weights are N(0, 0.02) rounded to BF16; norms are one. As the usual converter does, the GGUF
keeps the norms and the router in F32 (exact, since every BF16 value is an F32 value).
"""

import json
import os
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

from shape import (
    EXPERT_WIDTH, EXPERTS, EXPERTS_PER_TOKEN, FIRST_PLAIN_TOKEN, HEAD_DIM, HEADS, HIDDEN,
    KV_HEADS, LAYERS, VOCAB,
)

SEED = 20240607
CONTEXT = 40960
DENSE_WIDTH = 6144  # named by the configuration, used by no layer
ROPE_THETA = 1e6
RMS_EPS = 1e-6
BF16_ONE = np.uint16(0x3F80)
QUERY_WIDTH = HEADS * HEAD_DIM
KV_WIDTH = KV_HEADS * HEAD_DIM

HF_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE_WIDTH,
    "max_position_embeddings": CONTEXT,
    "max_window_layers": LAYERS,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": EXPERT_WIDTH,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "output_router_logits": False,
    "rms_norm_eps": RMS_EPS,
    "rope_scaling": None,
    "rope_theta": ROPE_THETA,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}

# GGUF name, safetensors name, shape, kept in F32. {e}: one safetensors tensor per expert.
# The order is the order in which the random numbers are drawn.
LAYER_TENSORS = [
    ("attn_norm", "input_layernorm", (HIDDEN,), True),
    ("attn_q", "self_attn.q_proj", (QUERY_WIDTH, HIDDEN), False),
    ("attn_k", "self_attn.k_proj", (KV_WIDTH, HIDDEN), False),
    ("attn_v", "self_attn.v_proj", (KV_WIDTH, HIDDEN), False),
    ("attn_output", "self_attn.o_proj", (HIDDEN, QUERY_WIDTH), False),
    ("attn_q_norm", "self_attn.q_norm", (HEAD_DIM,), True),
    ("attn_k_norm", "self_attn.k_norm", (HEAD_DIM,), True),
    ("ffn_norm", "post_attention_layernorm", (HIDDEN,), True),
    ("ffn_gate_inp", "mlp.gate", (EXPERTS, HIDDEN), True),
    ("ffn_gate_exps", "mlp.experts.{e}.gate_proj", (EXPERTS, EXPERT_WIDTH, HIDDEN), False),
    ("ffn_up_exps", "mlp.experts.{e}.up_proj", (EXPERTS, EXPERT_WIDTH, HIDDEN), False),
    ("ffn_down_exps", "mlp.experts.{e}.down_proj", (EXPERTS, HIDDEN, EXPERT_WIDTH), False),
]


def shards():
    """One list of (GGUF name, safetensors name, shape, kept in F32) per safetensors file."""
    yield [("token_embd", "model.embed_tokens", (VOCAB, HIDDEN), False)]
    for layer in range(LAYERS):
        yield [
            (f"blk.{layer}.{ours}", f"model.layers.{layer}.{theirs}", dims, f32)
            for ours, theirs, dims, f32 in LAYER_TENSORS
        ]
    yield [
        ("output_norm", "model.norm", (HIDDEN,), True),
        ("output", "lm_head", (VOCAB, HIDDEN), False),
    ]


def to_bf16(values):
    """f32 -> BF16 bits, to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def draw(rng, dims):
    """BF16 bits of one tensor: ones for a norm, else normal with deviation 0.02."""
    if len(dims) == 1:
        return np.full(dims, BF16_ONE, np.uint16)
    values = rng.standard_normal(int(np.prod(dims)), dtype=np.float32) * np.float32(0.02)
    return to_bf16(values).reshape(dims)


def write_safetensors(path, tensors):
    """Writes (name, BF16 bits) pairs; returns the bytes of data."""
    header, offset = {}, 0
    for name, data in tensors:
        end = offset + data.nbytes
        header[name] = {"dtype": "BF16", "shape": list(data.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _name, data in tensors:
            data.tofile(file)
    return offset


def split_experts(tensors):
    """The safetensors tensors of one file: the plain ones, then expert after expert."""
    plain = [(f"{name}.weight", data) for name, data in tensors if "{e}" not in name]
    fused = [(f"{name}.weight", data) for name, data in tensors if "{e}" in name]
    experts = range(len(fused[0][1]) if fused else 0)
    return plain + [(name.format(e=e), data[e]) for e in experts for name, data in fused]


def add_vocabulary(writer):
    """A SentencePiece-like vocabulary without meaning: specials, bytes, then t<id>."""
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{byte:02X}>".encode() for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    assert len(tokens) == FIRST_PLAIN_TOKEN
    tokens += [f"\u2581t{token}".encode() for token in range(FIRST_PLAIN_TOKEN, VOCAB)]
    kinds += [gguf.TokenType.NORMAL] * (VOCAB - FIRST_PLAIN_TOKEN)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(token) for token in range(VOCAB)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def open_gguf(path):
    """A GGUF writer with all metadata written, ready for the data in shard order."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name("synthetic-qwen3moe")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(DENSE_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_expert_used_count(EXPERTS_PER_TOKEN)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer)
    for name, _, dims, f32 in (tensor for shard in shards() for tensor in shard):
        add_tensor_info(writer, f"{name}.weight", dims, f32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def add_tensor_info(writer, name, dims, f32):
    """Announces one tensor; BF16 data is announced as bytes, its last dimension doubled."""
    count = int(np.prod(dims))
    if f32:
        kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor_info(name, dims, np.dtype(np.float32), count * 4, raw_dtype=kind)
    else:
        kind = gguf.GGMLQuantizationType.BF16
        byte_dims = [*dims[:-1], dims[-1] * 2]
        writer.add_tensor_info(name, byte_dims, np.dtype(np.uint8), count * 2, raw_dtype=kind)


def write_gguf_tensor(writer, data, f32):
    """Appends BF16 bits, widened when the tensor is kept in F32."""
    widened = (data.astype(np.uint32) << 16).view(np.float32) if f32 else data.view(np.uint8)
    writer.write_tensor_data(widened)


def main():
    out = Path(sys.argv[1])
    folder = out / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF_CONFIG, indent=1))
    rng = np.random.Generator(np.random.SFC64(SEED))
    writer = open_gguf(out / "model-bf16.gguf")
    weight_map, total_bytes = {}, 0
    for number, shard in enumerate(shards(), start=1):
        tensors = []
        for _ours, theirs, dims, f32 in shard:
            data = draw(rng, dims)
            write_gguf_tensor(writer, data, f32)
            tensors.append((theirs, data))
        tensors = split_experts(tensors)
        file_name = f"model-{number:05d}-of-{LAYERS + 2:05d}.safetensors"
        total_bytes += write_safetensors(folder / file_name, tensors)
        weight_map |= dict.fromkeys((name for name, _data in tensors), file_name)
        print(f"{file_name}: {len(tensors)} tensors", flush=True)
    writer.close()
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    print(f"{total_bytes} bytes, GGUF {os.path.getsize(out / 'model-bf16.gguf')} bytes")


if __name__ == "__main__":
    main()
