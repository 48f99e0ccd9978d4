"""The tables of pressure.py."""

import re

import shape
from compare import cell

POLICY_DEFAULT = "lfru"  # of tarfa
LRU_TARGET = 1.15
SPEED_TARGET = 4.0
WINDOWS = ("prompt", "first", "rest")


def print_report(result):
    print(f"{result['machine']['cpu']}, {result['threads']} threads, {result['rounds']} rounds, "
          f"commit {result['machine']['commit']}")
    print(f"memory limit {result['limit'] / 1e9:.2f} GB; the kernel reads ahead at most "
          + ", ".join(f"{device} {kib} KiB" for device, kib in result["read_ahead_kib"].items()))
    for part in result["checkpoints"]:
        print_checkpoint(part, result)


def print_checkpoint(part, result):
    weights = part["gguf_bytes"]
    print(f"\n## {part['checkpoint']}: {weights / 1e9:.2f} GB, of which the limit is "
          f"{result['limit'] / weights:.0%}; tarfa --ram-budget {part['ram_budget'] / 1e9:.2f} GB")
    print_windows(part)
    print_memory(part)
    print_simulated(part)
    print_runs(part)
    print_verdicts(part)


def print_windows(part):
    print("\n| peer | window | tokens | tok/s | MB/token | of all drives | MB/s "
          "| major faults/token | quiet blocks | tok/s of all blocks | foreign / stolen cores |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, by_window in part["windows"]["peers"].items():
        for window in WINDOWS:
            row = by_window[window]
            tokens, rate = row["tokens"], row["bytes_per_s"]
            print(f"| {name} | {window} | {tokens} | {cell(row['tokens_per_s'], 2)} "
                  f"| {row['process_bytes'] / tokens / 1e6:.1f} "
                  f"| {row['drive_bytes'] / tokens / 1e6:.1f} "
                  f"| {cell(rate and rate / 1e6, 0)} | {row['major_faults'] / tokens:.1f} "
                  f"| {row['quiet'][0]} of {row['quiet'][1]} "
                  f"| {row['all_tokens_per_s']:.2f} "
                  f"| {row['foreign_cores']:.2f} / {row['stolen_cores']:.2f} |")


def print_memory(part):
    for name in part["windows"]["peers"]:
        start = part["windows"]["peers"][name]["start"]
        memory = part["rounds"][-1][name]["memory"]
        print(f"\n{name}: starts in {start['seconds'] / len(part['rounds']):.1f} s, "
              f"reads {start['process_bytes'] / len(part['rounds']) / 1e9:.2f} GB; at the end "
              f"{memory['anonymous'] / 1e9:.2f} GB anonymous, {memory['cache'] / 1e9:.2f} GB page "
              f"cache, {memory['most'] / 1e9:.2f} GB at most", end="")
    print()


def print_simulated(part):
    reuse = part["simulated"][0]["reuse"]
    print(f"\nOf a token's experts, the token before used {reuse:.0%}. Simulated on tarfa's trace, "
          "MB/token of experts after the first tokens:")
    for simulated in part["simulated"]:
        rows = simulated["bytes_per_token"].items()
        print(f"  {simulated['slots']} experts in memory: "
              + ", ".join(f"{policy} {bytes_ / 1e6:.1f}" for policy, bytes_ in rows))


def print_runs(part):
    print("\n`tarfa run`, other ids, tokens after the first by its own counters. Simulated: its "
          "policy on its trace with as many experts. Seen: what the kernel read for the process in "
          "all, by the experts that tarfa counted plus the other weights.\n")
    print("| options | experts held | tok/s | MB/token | simulated | MB/s | hits "
          "| experts read/token | ahead used, late, wasted | stalled | ms an expert's read, check "
          "| seen | foreign cores |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for run in part["tarfa_runs"]:
        print_run(run, part["dense_bytes"])


def print_run(run, dense):
    tiers, tokens, seconds = run["tiers"], run["tokens"], run["seconds"]
    ahead = [tiers[f"ahead_{what}"] for what in ("used", "late", "wasted")]
    asked = tiers["ram_experts"] + tiers["file_experts"] + ahead[0] + ahead[1]
    read = max(tiers["file_bytes"] / shape.expert_bytes(), 1)
    whole = run["long"]["figures"]
    counted = sum(whole[phase]["tiers"]["file_bytes"] for phase in ("prefill", "decode"))
    policy = re.search(r"--policy (\w+)", run["variant"])
    rows = run["simulated"]["bytes_per_token"] if run["simulated"] else {}
    simulated = rows.get(policy.group(1) if policy else POLICY_DEFAULT)
    print(f"| {run['variant'] or '-'} | {run['slots']} | {tokens / seconds:.2f} "
          f"| {tiers['file_bytes'] / tokens / 1e6:.1f} "
          f"| {cell(simulated and simulated / 1e6, 1)} "
          f"| {tiers['file_bytes'] / seconds / 1e6:.0f} "
          f"| {tiers['ram_experts'] / max(asked, 1):.3f} | {read / tokens:.1f} "
          f"| {', '.join(map(str, ahead))} | {tiers['stall_ns'] / 1e9 / seconds:.0%} "
          f"| {tiers['read_ns'] / 1e6 / read:.1f}, {tiers['check_ns'] / 1e6 / read:.1f} "
          f"| {run['long']['process_bytes'] / (counted + dense):.3f} "
          f"| {run['long']['foreign_cores']:.2f} |")


def print_verdicts(part):
    peers = part["windows"]["peers"]
    tarfa, llama = peers["tarfa"]["rest"], peers["llama.cpp"]["rest"]
    per_token = tarfa["process_bytes"] / tarfa["tokens"]
    print()
    for simulated in part["simulated"]:
        ratio = per_token / max(simulated["bytes_per_token"]["lru"], 1)
        print(f"tarfa's bytes/token, of a simulated LRU of {simulated['slots']} experts: "
              f"{ratio:.2f} (target {LRU_TARGET} at most)")
    pairs = part["windows"]["tarfa_over_llama"]["rest"]
    low, middle, high = (cell(value, 2) for value in pairs["quartiles"])
    print(f"tarfa / llama.cpp after the first tokens, tok/s: {middle} (quartiles {low} to {high}, "
          f"{pairs['pairs']} quiet pairs; target on model_spread {SPEED_TARGET} at least)")
    print(f"llama.cpp / tarfa, bytes/token: "
          f"{llama['process_bytes'] / llama['tokens'] / max(per_token, 1):.2f}")
