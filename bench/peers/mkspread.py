#!/usr/bin/env python3
"""Makes of mkmodel.py's checkpoint one whose tokens share few experts.

usage: mkspread.py FROM TO    reads FROM/hf/ and FROM/model-bf16.gguf, makes the same in TO

The embedding is multiplied by 64, exactly, in BF16. Beside a larger embedding the average that
attention adds weighs less, so the residual stream, and with it the routing, differs from token
to token. All other shards of the safetensors checkpoint are hard links; the GGUF is a copy.
"""

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

EXPONENT_SHIFT = 7
EXPONENT_MASK = np.uint16(0x7F80)
FACTOR_LOG2 = 6
EMBEDDING_HF = "model.embed_tokens.weight"
EMBEDDING_GGUF = "token_embd.weight"
GGUF = "model-bf16.gguf"


def scaled(bits):
    """BF16 bits times 64; zeros and subnormals stay as they are."""
    normal = (bits & EXPONENT_MASK) != 0
    grown = bits + np.uint16(FACTOR_LOG2 << EXPONENT_SHIFT)
    if np.any(grown[normal] & EXPONENT_MASK == EXPONENT_MASK):
        raise OverflowError("a value of the embedding is too large to be scaled")
    return np.where(normal, grown, bits).astype(np.uint16)


def rescale(path, offset, size_bytes):
    """Scales BF16 data in place; returns what was there."""
    with open(path, "r+b") as file:
        file.seek(offset)
        before = np.frombuffer(file.read(size_bytes), np.uint16)
        file.seek(offset)
        file.write(scaled(before).tobytes())
    return before


def place_in_safetensors(path, name):
    """(offset in the file, bytes) of one tensor."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        start, end = json.loads(file.read(length))[name]["data_offsets"]
    return 8 + length + start, end - start


def place_in_gguf(path, name):
    """(offset in the file, bytes) of one tensor."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return int(tensor.data_offset), int(tensor.n_bytes)


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    (out / "hf").mkdir(parents=True, exist_ok=True)
    index = json.loads((source / "hf" / "model.safetensors.index.json").read_text())
    changed = index["weight_map"][EMBEDDING_HF]
    for file in (source / "hf").iterdir():
        if not file.is_file():
            continue
        target = out / "hf" / file.name
        target.unlink(missing_ok=True)
        if file.name == changed:
            shutil.copyfile(file, target)
        else:
            os.link(file, target)
    shutil.copyfile(source / GGUF, out / GGUF)
    shard = out / "hf" / changed
    ours = rescale(shard, *place_in_safetensors(shard, EMBEDDING_HF))
    theirs = rescale(out / GGUF, *place_in_gguf(out / GGUF, EMBEDDING_GGUF))
    if not np.array_equal(ours, theirs):
        raise RuntimeError("the two files did not hold the same embedding")
    print(f"{len(ours)} weights of the embedding times {1 << FACTOR_LOG2}")


if __name__ == "__main__":
    main()
