#!/usr/bin/env python3
"""Decoding with too little memory: llama.cpp on the page cache beside tarfa's cache of experts.

Both peers live under memory limits of the same size, so that about half of the weights fits, and
start with an empty page cache. They take turns with blocks of the same ids at the same positions;
bytes from disk are those of the process, beside those of all drives. `tarfa sim` then replays the
trace of the same tokens, and `tarfa run` shows tarfa's own counters. See README.md.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import shape
from compare import (
    BLOCK_TOKENS, PROMPT_TOKENS, SETTLE_SECONDS, machine, median, quartiles, quiet, quiet_pairs,
)
from limited import SECTOR_BYTES, LimitedGroup, drop_caches, machine_read_bytes, read_counters
from line_peer import LinePeer
from meter import CpuMeter, Patience, machine_cpu_seconds
from pressure_table import print_report
from tarfa_peer import TarfaPeer

# `tarfa sim` leaves the first quarter of a trace's passes uncounted. With the two passes before the
# tokens (the step that readies the child, the prompt) and one block more than four times the first
# tokens, those are exactly the first tokens.
WARM_SHARE = 4
TARFA_RESERVE_BYTES = 300 << 20  # kept free by tarfa beside its budget
BUDGET_MARGIN_BYTES = 32_000_000
TEMPERATURE_ANY = 100  # makes every token about as likely: ids as random as the teacher's
WINDOWS = ("start", "prompt", "first", "rest")


@dataclass
class Sample:
    """One measured operation."""

    window: str
    tokens: int
    seconds: float
    process_bytes: int
    drive_bytes: int
    major_faults: int
    foreign_cores: float
    stolen_cores: float


@dataclass
class Track:
    """A peer of one round, its group and what was measured."""

    peer: object
    group: LimitedGroup
    samples: list = field(default_factory=list)
    meter: CpuMeter = None

    def measure(self, window, operation, ids):
        """Runs one operation; what it set going on the disk may end before the counters."""
        before = read_counters(self.peer.pid)
        with self.meter:
            began = time.perf_counter()
            operation(ids)
            seconds = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        self.note(window, len(ids), seconds, before, self.meter.last)

    def note(self, window, tokens, seconds, before, cores):
        now = read_counters(self.peer.pid)
        spent = {name: now[name] - before[name] for name in now}
        others = {f"{who}_cores": cores[who] for who in ("foreign", "stolen")}
        self.samples.append(Sample(window, tokens, seconds, **spent, **others))


def dense_bytes(model):
    """Bytes of the weights beside the routed experts."""
    index = json.loads((model / "model.safetensors.index.json").read_text())
    return index["metadata"]["total_size"] - shape.LAYERS * shape.EXPERTS * shape.expert_bytes()


def expert_bytes(store):
    """Bytes of one expert as tarfa reads it: of a packed store the mean of what it holds."""
    if store is None:
        return shape.expert_bytes()
    files = [path for path in (store / "layers").rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) // (shape.LAYERS * shape.EXPERTS)


class Bench:
    """One checkpoint under one memory limit."""

    def __init__(self, args, name):
        self.args = args
        self.name = name
        self.model = args.peers_dir / name / "hf"
        self.gguf = args.peers_dir / name / "model-bf16.gguf"
        self.dense = dense_bytes(self.model)
        self.tarfa_model = args.store or self.model
        self.budget = args.budget or (
            args.limit - self.dense - TARFA_RESERVE_BYTES - BUDGET_MARGIN_BYTES
        )
        self.expert_bytes = expert_bytes(args.store)
        # What an LRU could hold in the same memory: everything beside the other weights.
        self.slots_of_memory = (args.limit - self.dense) // self.expert_bytes

    def tier_options(self, budget):
        return ["--ram-budget", str(budget), "--no-heat", *shlex.split(self.args.tarfa_options)]

    def open_track(self, name, trace):
        """Starts a peer in a group of its own and notes what the start took."""
        group = LimitedGroup(name, self.args.limit)
        began, drive_before = time.perf_counter(), machine_read_bytes()
        if name == "llama":
            script = Path(__file__).resolve().with_name("llama_stdio.py")
            command = [sys.executable, str(script), str(self.args.peers_dir), str(self.gguf)]
            peer = LinePeer("llama.cpp", group.command([*command, str(self.args.threads)]))
        else:
            options = [*self.tier_options(self.budget), "--record-trace", str(trace)]
            command = group.command(shlex.split(self.args.tarfa))
            peer = TarfaPeer(command, self.tarfa_model, self.args.threads, options)
        track = Track(peer, group)
        before = {"process_bytes": 0, "drive_bytes": drive_before, "major_faults": 0}
        unknown = {"foreign": 0.0, "stolen": 0.0}
        track.note("start", 0, time.perf_counter() - began, before, unknown)
        return track

    def round(self, number, trace):
        """Both peers from an empty page cache to the last token, in turns."""
        drop_caches()
        tracks = [self.open_track(name, trace) for name in ("llama", "tarfa")]
        pids = {track.peer.pid for track in tracks}
        for track in tracks:
            track.meter = CpuMeter(track.peer.pid, sorted(pids - {track.peer.pid}))
            track.peer.reset()
            prompt = shape.token_ids(PROMPT_TOKENS, seed=100 + number)
            track.measure("prompt", track.peer.prompt, prompt)
        ids = shape.token_ids(self.args.tokens, seed=200 + number)
        patience = Patience(self.args.patience, self.args.foreign_max)
        for start in range(0, len(ids), BLOCK_TOKENS):
            window = "first" if start < self.args.first else "rest"
            for track in tracks if start // BLOCK_TOKENS % 2 == 0 else tracks[::-1]:
                patience.wait()
                track.measure(window, track.peer.decode, ids[start : start + BLOCK_TOKENS])
            self.say(f"round {number + 1}: {start + BLOCK_TOKENS} of {len(ids)} tokens")
        return self.end(tracks)

    @staticmethod
    def end(tracks):
        """Ends the peers; what is known of them as plain data."""
        result = {}
        for track in tracks:
            memory = track.group.memory()
            track.peer.close()
            track.group.remove()
            samples = [asdict(sample) for sample in track.samples]
            result[track.peer.name] = {"memory": memory, "samples": samples}
        return result

    def say(self, text):
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def simulate(self, traces, slots, before):
        """Bytes a token of every policy with that many experts in memory, by `tarfa sim`.

        `before` is how many passes come before the tokens; a mean over the traces.
        """
        reports = [self.simulate_one(trace, slots) for trace in traces]
        for report in reports:
            if report["setup"]["warm_passes"] != before + self.args.first:
                raise RuntimeError("tarfa sim does not leave out just the first tokens")
        rows = [{row["policy"]: row["file_bytes_per_token"] for row in report["policies"]}
                | {"optimum": report["optimum"]["file_bytes_per_token"]} for report in reports]
        return {"slots": slots, "reuse": statistics.mean(report["reuse"] for report in reports),
                "bytes_per_token": {name: statistics.mean(row[name] for row in rows)
                                    for name in rows[0]}}

    def simulate_one(self, trace, slots):
        command = [*shlex.split(self.args.tarfa), "sim", "--trace", str(trace), "--policy", "all"]
        command += ["--ram", str(slots * self.expert_bytes), "--no-curve", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def run_tarfa(self, tokens, options):
        """One `tarfa run` from an empty page cache: its figures, and the kernel's of the process.

        The last generated token is not decoded, hence one more.
        """
        prompt = ",".join(map(str, shape.token_ids(PROMPT_TOKENS, seed=100)))
        command = [*shlex.split(self.args.tarfa), "run", "--model", str(self.tarfa_model)]
        command += ["--ids", prompt, "--max-tokens", str(tokens + 1), "--ignore-eos", "--json"]
        command += ["--temperature", str(TEMPERATURE_ANY), "--seed", "1"]
        command += ["--threads", str(self.args.threads), *options]
        group = LimitedGroup("run", self.args.limit)
        drop_caches()
        Patience(self.args.patience, self.args.foreign_max).wait()
        began, busy_before = time.perf_counter(), machine_cpu_seconds()[0]
        child = subprocess.Popen(group.command(command), stdout=subprocess.PIPE, text=True)
        answer = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        foreign = machine_cpu_seconds()[0] - busy_before - usage.ru_utime - usage.ru_stime
        foreign_cores, memory = foreign / (time.perf_counter() - began), group.memory()
        group.remove()
        if child.returncode != 0:
            raise RuntimeError(f"exit code {child.returncode}: {shlex.join(command)}")
        figures = json.loads(answer)["figures"]
        return {"figures": figures, "memory": memory, "foreign_cores": foreign_cores,
                "process_bytes": usage.ru_inblock * SECTOR_BYTES}

    def audit(self, variant, trace):
        """tarfa's counters after the first tokens: those of a long run less those of a short."""
        self.say(f"tarfa run {variant}")
        options = [*self.tier_options(self.budget), *shlex.split(variant)]
        if "--ram-budget" in variant:
            options = options[2:]
        # One pass, the prompt, comes before the tokens: an exact quarter is left uncounted.
        tokens = WARM_SHARE * (self.args.first + 1) - 1
        short = self.run_tarfa(self.args.first, options)
        long = self.run_tarfa(tokens, [*options, "--record-trace", str(trace)])
        first, whole = short["figures"]["decode"], long["figures"]["decode"]
        tiers = {name: whole["tiers"][name] - first["tiers"][name] for name in whole["tiers"]}
        held = slots(long["figures"]["placement"])
        return {
            "variant": variant,
            "tokens": whole["tokens"] - first["tokens"],
            "seconds": whole["seconds"] - first["seconds"],
            "tiers": tiers,
            "slots": held,
            "simulated": held and self.simulate([trace], held, before=1),
            "long": long,
        }

    def run(self):
        """Everything about this checkpoint as plain data."""
        with tempfile.TemporaryDirectory() as folder:
            traces = [Path(folder) / f"trace_{number}" for number in range(self.args.rounds)]
            rounds = [self.round(number, trace) for number, trace in enumerate(traces)]
            other = Path(folder) / "trace_run"
            audits = [self.audit(variant, other) for variant in ["", *self.args.variant]]
            held = (self.slots_of_memory, audits[0]["slots"] or self.slots_of_memory)
            simulated = [self.simulate(traces, count, before=2) for count in held]
        return {
            "checkpoint": self.name,
            "gguf_bytes": self.gguf.stat().st_size,
            "dense_bytes": self.dense,
            "ram_budget": self.budget,
            "rounds": rounds,
            "windows": windows(rounds, self.args.foreign_max),
            "simulated": simulated,
            "tarfa_runs": audits,
        }


def slots(placement):
    """Experts that fit in tarfa's cache; `None` where it maps the files."""
    found = re.match(r"(\d+) of \d+ experts fit", placement)
    return int(found.group(1)) if found else None


def windows(rounds, foreign_max):
    """Sums over all rounds by peer and window, and how fast tarfa is beside llama.cpp."""
    report = {"peers": {}, "tarfa_over_llama": {}}
    samples = {}
    for name in rounds[0]:
        taken = [Sample(**s) for each in rounds for s in each[name]["samples"]]
        samples[name] = {w: [s for s in taken if s.window == w] for w in WINDOWS}
        sums = {w: window_sums(samples[name][w], foreign_max) for w in WINDOWS}
        report["peers"][name] = sums
    for w in ("first", "rest"):
        pairs = quiet_pairs(samples["tarfa"][w], samples["llama.cpp"][w], foreign_max)
        ratios = [b.seconds / a.seconds for a, b in pairs]
        report["tarfa_over_llama"][w] = {"quartiles": quartiles(ratios), "pairs": len(ratios)}
    return report


def window_sums(samples, foreign_max):
    """Bytes and seconds of all samples, speed of the quiet ones."""
    tokens, seconds = sum(s.tokens for s in samples), sum(s.seconds for s in samples)
    undisturbed = quiet(samples, foreign_max)
    totals = {name: sum(getattr(s, name) for s in samples)
              for name in ("process_bytes", "drive_bytes", "major_faults")}
    return {
        "tokens": tokens,
        "seconds": seconds,
        "all_tokens_per_s": tokens / seconds,
        "tokens_per_s": median(s.tokens / s.seconds for s in undisturbed),
        "bytes_per_s": median(s.process_bytes / s.seconds for s in undisturbed),
        "quiet": [len(undisturbed), len(samples)],
        **totals,
        "foreign_cores": statistics.mean(s.foreign_cores for s in samples),
        "stolen_cores": statistics.mean(s.stolen_cores for s in samples),
    }


def read_ahead_kib():
    """How far the kernel reads ahead of a fault, by block device: llama.cpp depends on it."""
    paths = sorted(Path("/sys/block").glob("*/queue/read_ahead_kb"))
    return {path.parts[3]: int(path.read_text()) for path in paths
            if (path.parents[1] / "size").read_text().strip() != "0"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", action="append",
                        help="folder below PEERS_DIR; may be repeated [model, model_spread]")
    parser.add_argument("--store", type=Path,
                        help="tarfa reads this store, made from the one --checkpoint")
    parser.add_argument("--limit", type=float, default=4.1e9, help="bytes for each peer")
    parser.add_argument("--budget", type=float,
                        help="tarfa --ram-budget [what its own rules allow below the limit]")
    parser.add_argument("--first", type=int, default=32, help="tokens that count as the first ones")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--foreign-max", type=float, default=0.25,
                        help="leave blocks during which others used more cores out of the speeds")
    parser.add_argument("--patience", type=float, default=120,
                        help="seconds of a round that may go by waiting for others to be done")
    parser.add_argument("--tarfa", default="target/release/tarfa", help="command that starts it")
    parser.add_argument("--tarfa-options", default="", help="more options for it, in one word")
    parser.add_argument("--variant", action="append", default=[],
                        help="run `tarfa run` with these options too; may be repeated")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    if "PEERS_DIR" not in os.environ:
        parser.error("set PEERS_DIR to the folder that setup.sh filled")
    if args.first % BLOCK_TOKENS != 0:
        parser.error(f"--first must be a multiple of {BLOCK_TOKENS}")
    args.peers_dir = Path(os.environ["PEERS_DIR"]).resolve()
    args.checkpoint = args.checkpoint or ["model", "model_spread"]
    args.limit, args.budget = int(args.limit), int(args.budget) if args.budget else None
    args.tokens = WARM_SHARE * args.first + BLOCK_TOKENS
    return args


def main():
    args = arguments()
    result = {
        "machine": machine(),
        "threads": args.threads,
        "rounds": args.rounds,
        "limit": args.limit,
        "read_ahead_kib": read_ahead_kib(),
        "checkpoints": [Bench(args, name).run() for name in args.checkpoint],
    }
    print_report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
