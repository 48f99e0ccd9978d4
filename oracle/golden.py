#!/usr/bin/env python3
"""Writes `oracle.json` beside each golden checkpoint: the hashes that every path must print.

  golden.py MODEL_DIR...

Prompts: the ids of `reference.npz` (1, 7, 33 and 130 tokens) and 600 more drawn from a fixed
linear congruence; 64 greedy tokens after each.  Takes minutes: the oracle is slow on purpose.
"""
import json, os, subprocess, sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

def prompts(folder):
    reference = np.load(os.path.join(folder, "reference.npz"))
    out = [[int(t) for t in reference[f"ids_{i}"]] for i in range(4)]
    config = json.load(open(os.path.join(folder, "config.json")))
    vocab = config.get("text_config", config)["vocab_size"]
    state, long = 12345, []
    for _ in range(600):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        long.append((state >> 33) % vocab)
    return out + [long]

for folder in sys.argv[1:]:
    cases = []
    for ids in prompts(folder):
        command = [sys.executable, os.path.join(HERE, "oracle.py"), folder, "--generate", "64",
                   "--ids", ",".join(map(str, ids))]
        got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        cases.append({k: got[k] for k in ("prompt", "prompt_logits_sha256", "tokens", "logits_sha256")})
        print(folder, len(ids), "tokens", flush=True)
    with open(os.path.join(folder, "oracle.json"), "w") as f:
        json.dump(cases, f, indent=0)
