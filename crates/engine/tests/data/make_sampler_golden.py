"""Writes sampler_golden.json: 32 tokens for several requests, from an independent sampler.

Plain Python, no packages: ChaCha20 from its definition, the exponential in 60 decimal digits
rounded once to binary32, weights as integers, cuts and shares as fractions.
Run: python3 make_sampler_golden.py > sampler_golden.json
"""
import json
import struct
from decimal import Decimal, getcontext
from fractions import Fraction

getcontext().prec = 60
VOCAB, TOKENS = 64, 32


def f32(x):
    """A real number (int, float or Fraction) to the nearest binary32, ties to even."""
    x = Fraction(x)
    if x == 0:
        return 0.0
    exponent = 0
    magnitude = abs(x)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return float(round(x / unit) * unit)  # round() of a Fraction is ties to even


def exp32(a):
    return f32(Fraction(Decimal(a).exp()))


def chacha_u64(seed, choice, position):
    def quarter(s, a, b, c, d):
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            v = s[z] ^ s[x]
            s[z] = ((v << turn) | (v >> (32 - turn))) & 0xFFFFFFFF

    key = struct.pack("<Q", seed) + bytes(24)
    start = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key))
    start += list(struct.unpack("<4I", struct.pack("<QQ", position, choice)))
    s = list(start)
    for _ in range(10):
        for q in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                  (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(s, *q)
    block = struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(s, start)))
    return struct.unpack("<Q", block[:8])[0]


assert chacha_u64(0, 0, 0) == int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")


def adjust(logits, p, prompt, output):
    l = list(logits)
    for i, b in p.get("logit_bias", []):
        l[i] = f32(Fraction(l[i]) + Fraction(f32(b)))
    r = f32(p.get("repetition_penalty", 1.0))
    if r != 1.0:
        for i in sorted(set(prompt) | set(output)):
            l[i] = f32(Fraction(l[i]) / Fraction(r)) if l[i] > 0 else f32(Fraction(l[i]) * Fraction(r))
    for i in sorted(set(output)):
        l[i] = f32(Fraction(l[i]) - Fraction(f32(p.get("presence_penalty", 0.0))))
        step = f32(Fraction(f32(p.get("frequency_penalty", 0.0))) * output.count(i))
        l[i] = f32(Fraction(l[i]) - Fraction(step))
    return l


def choose(l, p, position):
    top = max(l)
    if p["temperature"] == 0:
        return l.index(top)
    w = [int(Fraction(exp32(f32((x - top) / p["temperature"]))) * 2**40) for x in l]
    order = sorted(range(len(w)), key=lambda i: (-w[i], i))
    order = order[: p.get("top_k") or len(order)]
    if p.get("top_p") is not None:
        total, running, kept = sum(w[i] for i in order), 0, []
        for i in order:
            kept.append(i)
            running += w[i]
            if running >= Fraction(p["top_p"]) * total:
                break
        order = kept
    if p.get("min_p") is not None:
        order = [i for i in order if w[i] >= Fraction(p["min_p"]) * w[order[0]]]
    total = sum(w[i] for i in order)
    target, running = (chacha_u64(p.get("seed", 0), p.get("choice", 0), position) * total) >> 64, 0
    for i in sorted(order):
        running += w[i]
        if running > target:
            return i


# Exact in binary32: multiples of 2^-8 from -8 to 8, with repeats.
LOGITS = [(((i * 2654435761) % 2**32) >> 20) / 256 - 8 for i in range(VOCAB - 4)] + [7.5, 7.5, -8.0, 7.5]
PROMPT = [3, 5, 5, 61]
REQUESTS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "seed": 42},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "seed": 42, "choice": 3},
    {"temperature": 1.5, "min_p": 0.05, "seed": 2**64 - 1},
    {"temperature": 100.0, "seed": 7, "choice": 2**63},
    {"temperature": 1.0, "top_k": 2, "seed": 9},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 2.0, "repetition_penalty": 1.3, "presence_penalty": -0.1, "frequency_penalty": 0.7,
     "logit_bias": [[2, 9.1], [2, -0.3], [40, -100.0]], "top_p": 0.8, "min_p": 0.01, "seed": 12345},
]


def run(p):
    output = []
    for position in range(TOKENS):
        output.append(choose(adjust(LOGITS, p, PROMPT, output), p, position))
    return output


print(json.dumps({
    "made_by": "make_sampler_golden.py (independent of the engine)",
    "logits": LOGITS, "prompt": PROMPT,
    "cases": [{"params": p, "tokens": run(p)} for p in REQUESTS],
}, indent=None).replace('"cases": [', '"cases": [\n').replace("}, {", "},\n{"))
