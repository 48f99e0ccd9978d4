#!/usr/bin/env python3
"""Writes crates/engine/tests/data/strange_models.json: models of sizes that nothing likes (odd,
prime, one), as recipes that the test follows, with the oracle's hashes of what they compute.

  strange.py

A tensor is [name, dtype, bits, shift, shape]. Its values are m * 2^-shift, where m are signed
integers of `bits` bits (8: exact in bf16, 24: exact in f32) from the linear congruence below,
which starts anew for each tensor.
"""
import json, math, os, struct, tempfile
import numpy as np
from oracle import Model, sha

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "crates", "engine", "tests", "data", "strange_models.json")
U64 = 2 ** 64

def draws(seed, count):
    state = (seed * 0x9E3779B97F4A7C15 + 1) % U64
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % U64
        yield state >> 33

def encode(values, dtype):
    """Values that are exact in the format, so no rounding happens here."""
    f32 = np.array(values, np.float64).astype("<f4")
    return f32.tobytes() if dtype == "F32" else (f32.view("<u4") >> 16).astype("<u2").tobytes()

def tensor_bytes(index, dtype, bits, shift, shape):
    limit = 2 ** (bits - 1) - 1
    values = [(d % (2 * limit + 1) - limit) * 2.0 ** -shift for d in draws(index, math.prod(shape))]
    return encode(values, dtype)

class Recipe:
    """Tensors of a config, in the naming and the types asked for."""
    def __init__(self, about, config, f32=(), fused=False, wrapped=False):
        self.about, self.config, self.f32 = about, config, f32
        self.fused, self.wrapped, self.tensors = fused, wrapped, []
        c = config.get("text_config", config)
        self.hidden, self.family = c["hidden_size"], c["model_type"].removesuffix("_text")
        self.add("model.embed_tokens.weight", [c["vocab_size"], self.hidden], 1, bits=8)
        for i in range(c["num_hidden_layers"]):
            self.layer(c, i, f"model.layers.{i}.")
        self.vector("model.norm.weight", self.hidden)
        if not c.get("tie_word_embeddings"):
            self.add("lm_head.weight", [c["vocab_size"], self.hidden])

    def add(self, name, shape, fan_in=None, bits=None):
        """Uniform values; a sum of fan_in products with unit inputs comes out near one."""
        is_f32 = any(part in name for part in self.f32)
        bits = bits or (24 if is_f32 else 8)
        shift = round(math.log2(0.58 * 2 ** (bits - 1) * math.sqrt(fan_in or shape[-1])))
        if self.wrapped:
            name = name.replace("model.", "model.language_model.", 1)
        self.tensors.append([name, "F32" if is_f32 else "BF16", bits, shift, shape])

    def vector(self, name, *shape):
        self.add(name, list(shape), 1)

    def layer(self, c, i, p):
        self.vector(p + "input_layernorm.weight", self.hidden)
        step = c.get("full_attention_interval", 4)
        linear = self.family == "qwen3_5_moe" and (i + 1) % step != 0
        if "layer_types" in c:
            linear = c["layer_types"][i] == "linear_attention"
        (self.delta_net if linear else self.attention)(c, p)
        self.vector(p + "post_attention_layernorm.weight", self.hidden)
        sparse = i not in c.get("mlp_only_layers", []) and (i + 1) % c.get("decoder_sparse_step", 1) == 0
        if sparse:
            self.experts(c, p + "mlp.")
        else:
            self.mlp(p + "mlp.", c["intermediate_size"])

    def attention(self, c, p):
        h, kv = c["num_attention_heads"], c["num_key_value_heads"]
        d, gate = c.get("head_dim") or self.hidden // h, 2 if self.family == "qwen3_5_moe" else 1
        self.add(p + "self_attn.q_proj.weight", [gate * h * d, self.hidden])
        self.add(p + "self_attn.k_proj.weight", [kv * d, self.hidden])
        self.add(p + "self_attn.v_proj.weight", [kv * d, self.hidden])
        self.add(p + "self_attn.o_proj.weight", [self.hidden, h * d])
        self.vector(p + "self_attn.q_norm.weight", d)
        self.vector(p + "self_attn.k_norm.weight", d)

    def delta_net(self, c, p):
        p += "linear_attn."
        nk, nv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        channels, taps = 2 * nk * dk + nv * dv, c["linear_conv_kernel_dim"]
        self.add(p + "in_proj_qkv.weight", [channels, self.hidden])
        self.add(p + "in_proj_z.weight", [nv * dv, self.hidden])
        self.add(p + "in_proj_b.weight", [nv, self.hidden])
        self.add(p + "in_proj_a.weight", [nv, self.hidden])
        self.add(p + "conv1d.weight", [channels, 1, taps])
        self.vector(p + "A_log", nv)
        self.vector(p + "dt_bias", nv)
        self.vector(p + "norm.weight", dv)
        self.add(p + "out_proj.weight", [self.hidden, nv * dv])

    def mlp(self, p, width):
        self.add(p + "gate_proj.weight", [width, self.hidden])
        self.add(p + "up_proj.weight", [width, self.hidden])
        self.add(p + "down_proj.weight", [self.hidden, width])

    def experts(self, c, p):
        n, width = c.get("num_experts") or c["num_local_experts"], c["moe_intermediate_size"]
        self.add(p + "gate.weight", [n, self.hidden])
        if self.fused:
            self.add(p + "experts.gate_up_proj", [n, 2 * width, self.hidden])
            self.add(p + "experts.down_proj", [n, self.hidden, width])
        else:
            for e in range(n):
                self.mlp(f"{p}experts.{e}.", width)
        if "shared_expert_intermediate_size" in c:
            self.mlp(p + "shared_expert.", c["shared_expert_intermediate_size"])
            self.add(p + "shared_expert_gate.weight", [1, self.hidden])

    def write(self, folder):
        header, data = {}, b""
        for index, (name, dtype, bits, shift, shape) in enumerate(self.tensors):
            raw = tensor_bytes(index, dtype, bits, shift, shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        head = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + data)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config, f)

    def case(self, length, generate):
        vocab = self.config.get("text_config", self.config)["vocab_size"]
        prompt, tokens, hashes = [d % vocab for d in draws(12345, length)], [], []
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder)
            model = Model(folder)
            logits = model.forward(prompt)
            prompt_hashes = [sha(row) for row in logits]
            for _ in range(generate):
                tokens.append(int(np.argmax(logits[-1])))
                hashes.append(sha(logits[-1]))
                logits = model.forward(tokens[-1:])
        return {"about": self.about, "config": self.config, "tensors": self.tensors, "prompt": prompt,
                "prompt_logits_sha256": prompt_hashes, "tokens": tokens, "logits_sha256": hashes}

def qwen35(**changes):
    return dict(model_type="qwen3_5_moe_text", hidden_size=70, num_hidden_layers=4, vocab_size=131,
                max_position_embeddings=100, rms_norm_eps=1e-6, num_attention_heads=3, num_key_value_heads=1,
                head_dim=18, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=10,
                linear_value_head_dim=14, linear_conv_kernel_dim=3, num_experts=5, num_experts_per_tok=3,
                moe_intermediate_size=33, shared_expert_intermediate_size=17,
                rope_parameters=dict(rope_type="default", rope_theta=10000000)) | changes

def qwen3(**changes):
    return dict(model_type="qwen3_moe", hidden_size=70, num_hidden_layers=3, vocab_size=131,
                max_position_embeddings=100, rms_norm_eps=1e-6, num_attention_heads=6, num_key_value_heads=2,
                head_dim=18, num_experts=11, num_experts_per_tok=3, moe_intermediate_size=33,
                intermediate_size=77, rope_theta=1000000.0) | changes

FULL, LINEAR = "full_attention", "linear_attention"
RECIPES = [
    Recipe("qwen3_5_moe, attention first, no size a multiple of four",
           qwen35(layer_types=[FULL, LINEAR, LINEAR, FULL])),
    Recipe("qwen3_5_moe, wrapped and tied, fused experts, all of them chosen, half of a head rotated",
           dict(model_type="qwen3_5_moe", text_config=qwen35(
               hidden_size=45, num_attention_heads=5, num_key_value_heads=5, head_dim=12, vocab_size=37,
               full_attention_interval=2, linear_num_key_heads=3, linear_key_head_dim=7,
               linear_value_head_dim=5, linear_conv_kernel_dim=2, num_experts=7, num_experts_per_tok=7,
               moe_intermediate_size=9, shared_expert_intermediate_size=1, tie_word_embeddings=True,
               rope_parameters=dict(rope_theta=10000.0, partial_rotary_factor=0.5))),
           fused=True, wrapped=True),
    Recipe("qwen3_5_moe, all weights F32",
           qwen35(num_hidden_layers=2, full_attention_interval=2, linear_conv_kernel_dim=5),
           f32=("",), fused=True),
    Recipe("qwen3_5_moe, the small tensors F32 as published checkpoints have them, nothing rotated",
           qwen35(num_hidden_layers=2, layer_types=[LINEAR, FULL], num_experts=1, num_experts_per_tok=1,
                  head_dim=3, linear_key_head_dim=1),
           f32=("A_log", "norm.weight", "dt_bias")),
    Recipe("qwen3_moe, layer 1 dense, weights divided by the sum over all experts",
           qwen3(mlp_only_layers=[1], norm_topk_prob=False)),
    Recipe("qwen3_moe, one expert of width one, every other layer dense, old spelling of the fields",
           qwen3(hidden_size=33, num_hidden_layers=4, head_dim=None, num_attention_heads=3,
                 num_key_value_heads=3, decoder_sparse_step=2, num_experts=None, num_local_experts=1,
                 num_experts_per_tok=1, moe_intermediate_size=1, intermediate_size=3, vocab_size=3,
                 rope_scaling=None, rms_norm_eps=1e-5, partial_rotary_factor=0.4)),
    Recipe("qwen3_moe, all weights F32, a wide dense layer first",
           qwen3(num_hidden_layers=2, mlp_only_layers=[0], intermediate_size=515), f32=("",)),
]

def main():
    cases = []
    for recipe in RECIPES:
        cases.append(recipe.case(21, 6))
        print(recipe.about, cases[-1]["tokens"], flush=True)
    with open(OUT, "w") as f:
        f.write("[" + ",\n".join(map(text, cases)) + "]\n")

def text(case):
    """JSON with one tensor or hash a line."""
    return "{" + ",\n".join(f"{json.dumps(k)}: {items(v)}" for k, v in case.items()) + "}"

def items(v):
    if isinstance(v, list) and not isinstance(v[0], int):
        return "[\n" + ",\n".join(map(json.dumps, v)) + "]"
    return json.dumps(v)

if __name__ == "__main__":
    main()
