"""The one checkpoint that the peers are compared on: a random Qwen3MoeForCausalLM in BF16."""

import numpy as np

HIDDEN = 2048
LAYERS = 6
HEADS = 32
KV_HEADS = 4
HEAD_DIM = 128
EXPERTS = 128
EXPERTS_PER_TOKEN = 8
EXPERT_WIDTH = 768
VOCAB = 32000
FIRST_PLAIN_TOKEN = 259  # after <unk>, <s>, </s> and the 256 byte tokens

BF16_BYTES = 2
F32_BYTES = 4


def expert_bytes():
    """Bytes of one expert."""
    return 3 * EXPERT_WIDTH * HIDDEN * BF16_BYTES


def active_bytes(router_bytes):
    """Weight bytes read per decoded token; `router_bytes` per router weight (GGUF keeps F32)."""
    attention = 2 * HEADS * HEAD_DIM * HIDDEN + 2 * KV_HEADS * HEAD_DIM * HIDDEN
    experts = EXPERTS_PER_TOKEN * expert_bytes()
    layer = attention * BF16_BYTES + experts + EXPERTS * HIDDEN * router_bytes
    head_and_embedding_row = (VOCAB + 1) * HIDDEN * BF16_BYTES
    return LAYERS * layer + head_and_embedding_row


def token_ids(count, seed):
    """`count` reproducible plain token ids."""
    return [int(t) for t in np.random.default_rng(seed).integers(FIRST_PLAIN_TOKEN, VOCAB, count)]
