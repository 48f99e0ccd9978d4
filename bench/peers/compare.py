#!/usr/bin/env python3
"""tarfa and llama.cpp side by side in one run, so that only ratios have to be believed.

Decode blocks of both peers alternate, token for token the same ids at the same positions; every
block stands between two probes of the read bandwidth; CPU time of everybody else is metered.
See README.md for the preparation; `--peer llama` or `--peer tarfa` runs one side alone.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import shape
from llama_peer import LlamaPeer
from meter import Bandwidth, CpuMeter, process_read_bytes
from tarfa_peer import TarfaPeer

PROMPT_TOKENS = 16
BLOCK_TOKENS = 8
PREFILL_TOKENS = 512
BITS_TOKENS = 300  # past position 256, where llama.cpp splits attention over its threads
SETTLE_SECONDS = 0.05  # lets a peer's threads fall asleep before the next probe


@dataclass
class Sample:
    """One measured block."""

    tokens_per_s: float
    of_read_bandwidth: float
    foreign_cores: float


class Track:
    """One peer and everything measured about it."""

    def __init__(self, peer, idle_pids):
        self.peer = peer
        self.meter = CpuMeter(peer.pid, idle_pids)
        self.decode = []
        self.prefill = []
        self.disk_read_bytes = 0

    def summary(self, foreign_max):
        """The medians of the quiet samples, and all samples, as plain data."""
        decode, prefill = quiet(self.decode, foreign_max), quiet(self.prefill, foreign_max)
        return {
            "peer": self.peer.name,
            "command": self.peer.describe(),
            "active_bytes": self.peer.active_bytes,
            "decode_tokens_per_s": median(s.tokens_per_s for s in decode),
            "decode_of_read_bandwidth": median(s.of_read_bandwidth for s in decode),
            "prefill_tokens_per_s": median(s.tokens_per_s for s in prefill),
            "quiet_decode_blocks": [len(decode), len(self.decode)],
            "cores": self.meter.mean(),
            "disk_read_bytes": self.disk_read_bytes,
            "decode": [asdict(sample) for sample in self.decode],
            "prefill": [asdict(sample) for sample in self.prefill],
        }


class Bench:
    """The peers, the probe and the order in which they take turns."""

    def __init__(self, peers, bandwidth):
        pids = {peer.pid for peer in peers}
        self.tracks = [Track(peer, sorted(pids - {peer.pid})) for peer in peers]
        self._bandwidth = bandwidth
        self.probes = [bandwidth()]

    def warm(self):
        """Touches every expert of both peers, unmeasured."""
        for track in self.tracks:
            track.peer.reset()
            track.peer.prompt(shape.token_ids(PREFILL_TOKENS, seed=99))
            track.peer.decode(shape.token_ids(BLOCK_TOKENS, seed=50))

    def round(self, number, blocks):
        """One prompt, `blocks` decode blocks and one prefill of every peer."""
        for track in self.tracks:
            track.peer.reset()
            track.peer.prompt(shape.token_ids(PROMPT_TOKENS, seed=100 + number))
        ids = shape.token_ids(blocks * BLOCK_TOKENS, seed=200 + number)
        self._settle()
        for block in range(blocks):
            part = ids[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
            for track in self._turns(number + block):
                track.decode.append(self._measure(track, track.peer.decode, part))
        prefill_ids = shape.token_ids(PREFILL_TOKENS, seed=300 + number)
        for track in self._turns(number):
            track.peer.reset()
            track.prefill.append(self._measure(track, track.peer.prompt, prefill_ids))

    def _turns(self, number):
        """Every peer once; who goes first alternates."""
        return self.tracks if number % 2 == 0 else self.tracks[::-1]

    def _measure(self, track, operation, ids):
        """One sample, with the mean of the probes before and after as the bandwidth."""
        before = self.probes[-1]
        read_before = process_read_bytes(track.peer.pid)
        with track.meter:
            began = time.perf_counter()
            operation(ids)
            rate = len(ids) / (time.perf_counter() - began)
        track.disk_read_bytes += process_read_bytes(track.peer.pid) - read_before
        self._settle()
        around = (before + self.probes[-1]) / 2
        of_bandwidth = rate * track.peer.active_bytes / 1e9 / around
        return Sample(rate, of_bandwidth, track.meter.last["foreign"])

    def _settle(self):
        time.sleep(SETTLE_SECONDS)
        self.probes.append(self._bandwidth())


def quiet(samples, foreign_max):
    """The samples that no other process disturbed."""
    return [sample for sample in samples if sample.foreign_cores <= foreign_max]


def median(values):
    values = list(values)
    return statistics.median(values) if values else None


def quartiles(values):
    """[25 %, 50 %, 75 %] of the values."""
    if len(values) < 2:
        return (values or [None]) * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def pair_report(tracks, foreign_max):
    """tarfa / llama.cpp over the pairs of neighbouring samples that are both quiet."""
    by_name = {track.peer.name: track for track in tracks}
    ours, theirs = by_name["tarfa"], by_name["llama.cpp"]
    decode = quiet_pairs(ours.decode, theirs.decode, foreign_max)
    prefill = quiet_pairs(ours.prefill, theirs.prefill, foreign_max)
    ratios = {
        "decode": [a.tokens_per_s / b.tokens_per_s for a, b in decode],
        "decode, of read bandwidth": [a.of_read_bandwidth / b.of_read_bandwidth for a, b in decode],
        "prefill": [a.tokens_per_s / b.tokens_per_s for a, b in prefill],
    }
    return {name: {"quartiles": quartiles(r), "pairs": len(r)} for name, r in ratios.items()}


def quiet_pairs(ours, theirs, foreign_max):
    pairs = zip(ours, theirs, strict=True)
    return [pair for pair in pairs if len(quiet(pair, foreign_max)) == 2]


def feed(peer, ids, chunk):
    """SHA-256 of the last logits after `ids` in chunks; chunk 1 goes through `decode`."""
    peer.reset()
    if chunk == 1:
        return peer.decode(ids)["logits_sha256"]
    for start in range(0, len(ids), chunk):
        answer = peer.prompt(ids[start : start + chunk])
    return answer["logits_sha256"]


def bits_report(open_peer, names, threads):
    """Which of chunking and thread count changes the last logits of one long prompt."""
    ids = shape.token_ids(BITS_TOKENS, seed=11)
    report = {}
    for name in names:
        digests = {}
        for count in (threads, 1):
            peer = open_peer(name, count)
            for chunk in (BITS_TOKENS, 32, 1):
                digests[f"threads {count}, chunk {chunk}"] = feed(peer, ids, chunk)
            peer.close()
        report[peer.name] = digests
    return report


def machine():
    """Facts about this run that a table without them could not be judged by."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    here = Path(__file__).resolve().parent
    git = subprocess.run(
        ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
    )
    return {"cpu": models[0] if models else "unknown", "cpus": len(models),
            "commit": git.stdout.strip() or "unknown"}


def cell(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def print_table(result):
    probe = result["read_bandwidth_gb_per_s"]
    print(f"{result['machine']['cpu']}, {result['threads']} threads, {result['rounds']} rounds, "
          f"commit {result['machine']['commit']}")
    print(f"read bandwidth GB/s: median {probe['median']:.1f}, "
          f"min {probe['min']:.1f}, max {probe['max']:.1f}\n")
    print("| peer | decode tok/s | of read bandwidth | prefill-512 tok/s | "
          "quiet blocks | other peer / foreign / stolen cores | read from disk |")
    print("|---|---|---|---|---|---|---|")
    for track in result["peers"]:
        cores = track["cores"]
        quiet_blocks, blocks = track["quiet_decode_blocks"]
        print(f"| {track['peer']} | {cell(track['decode_tokens_per_s'], 2)} "
              f"| {cell(track['decode_of_read_bandwidth'], 3)} "
              f"| {cell(track['prefill_tokens_per_s'], 1)} "
              f"| {quiet_blocks} of {blocks} "
              f"| {cores['idle_peer']:.2f} / {cores['foreign']:.2f} / {cores['stolen']:.2f} "
              f"| {track['disk_read_bytes'] / 1e6:.1f} MB |")
    for name, pair in result.get("tarfa_over_llama", {}).items():
        low, middle, high = pair["quartiles"]
        print(f"\ntarfa / llama.cpp, {name}: {cell(middle, 3)} (quartiles {cell(low, 3)} "
              f"to {cell(high, 3)}, {pair['pairs']} quiet pairs)", end="")
    print()
    for peer, digests in result.get("bits", {}).items():
        print(f"\n{peer}: {len(set(digests.values()))} different logits")
        for setting, digest in digests.items():
            print(f"  {setting:24s} {digest[:16]}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=("both", "llama", "tarfa"), default="both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=8, help="decode blocks a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tarfa", default="target/release/tarfa", help="command that starts it")
    parser.add_argument("--model", type=Path, help="Hugging Face folder")
    parser.add_argument("--gguf", type=Path, help="the same weights for llama.cpp")
    parser.add_argument("--probe-gib", type=float, default=2.0)
    parser.add_argument("--foreign-max", type=float, default=0.25,
                        help="leave out blocks during which others used more cores")
    parser.add_argument("--bits", action="store_true",
                        help="also hash the logits under other chunkings and thread counts")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    if "PEERS_DIR" not in os.environ:
        parser.error("set PEERS_DIR to the folder that setup.sh filled")
    args.peers_dir = Path(os.environ["PEERS_DIR"]).resolve()
    args.model = args.model or args.peers_dir / "model" / "hf"
    args.gguf = args.gguf or args.peers_dir / "model" / "model-bf16.gguf"
    return args


def measure(args, open_peer, names):
    """Runs the rounds; everything worth keeping as plain data."""
    bandwidth = Bandwidth(str(args.peers_dir / "libbandwidth.so"), args.probe_gib, args.threads)
    bench = Bench([open_peer(name, args.threads) for name in names], bandwidth)
    bench.warm()
    for number in range(args.rounds):
        bench.round(number, args.blocks)
        print(f"round {number + 1} of {args.rounds} done", file=sys.stderr, flush=True)
    result = {
        "machine": machine(),
        "threads": args.threads,
        "rounds": args.rounds,
        "foreign_max_cores": args.foreign_max,
        "read_bandwidth_gb_per_s": {
            "median": median(bench.probes), "min": min(bench.probes), "max": max(bench.probes),
        },
        "peers": [track.summary(args.foreign_max) for track in bench.tracks],
    }
    if len(bench.tracks) == 2:
        result["tarfa_over_llama"] = pair_report(bench.tracks, args.foreign_max)
    for track in bench.tracks:
        track.peer.close()
    return result


def main():
    args = arguments()

    def open_peer(name, threads):
        if name == "llama":
            return LlamaPeer(str(args.peers_dir), args.gguf, threads)
        return TarfaPeer(shlex.split(args.tarfa), args.model, threads)

    names = ("llama", "tarfa") if args.peer == "both" else (args.peer,)
    result = measure(args, open_peer, names)
    if args.bits:
        result["bits"] = bits_report(open_peer, names, args.threads)
    print_table(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
