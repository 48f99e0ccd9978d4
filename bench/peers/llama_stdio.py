#!/usr/bin/env python3
"""llama.cpp behind the line protocol of `tarfa bench --stdio`.

usage: llama_stdio.py PEERS_DIR GGUF THREADS
"""

import json
import sys

from llama_peer import LlamaPeer


def main():
    peers_dir, gguf, threads = sys.argv[1:]
    peer = LlamaPeer(peers_dir, gguf, int(threads))
    print(json.dumps({"ready": True, "active_bytes": peer.active_bytes}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "reset":
            peer.reset()
            answer = {"tokens": 0}
        else:
            answer = {"prompt": peer.prompt, "decode": peer.decode}[request["op"]](request["ids"])
        print(json.dumps(answer), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
