"""Times gtrain's training step, with eager calls and compiled, beside PyTorch's eager one in one run, and prints a Markdown table.

usage: compare.py cpu|cuda [--build DIR] [--rounds N]

PyTorch is needed for its column only, from whatever Python runs this (in a virtual environment: it is no dependency of gtrain). On the CPU both use all cores that the
process may run on, PyTorch in its faster memory format. On the GPU both use TF32. The programs take turns, and the median of all rounds is taken.
"""
import argparse, json, os, statistics, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("device", choices=["cpu", "cuda"])
parser.add_argument("--build", default="build/release")
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()
here = os.path.dirname(os.path.abspath(__file__))
env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
workloads = ["mlp64", "cnn64", "cnn512"] if args.device == "cpu" else ["mlp64", "cnn64", "cnn1000"]


def lines(command, **more):
    result = subprocess.run(command, env={**env, **more}, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def ours(*options):
    return {r["cfg"].split(":")[1]: r for r in lines([f"{args.build}/bench/train_step", "--device", args.device, *options, *workloads])}


def torch():
    best = {}
    if args.device == "cpu":
        cores = str(len(os.sched_getaffinity(0)))
        for layout in ({}, {"CL": "1"}):
            for r in lines([sys.executable, f"{here}/peers/torch_cpu.py"], THREADS=cores, **layout):
                name = f"{r['net']}{r['B']}"
                if name not in best or r["ms"] < best[name]["ms"]:
                    best[name] = r
    else:
        peers = {"mlp64": "mlpsmall64", "cnn64": "cnn64", "cnn1000": "cnn1000"}
        found = lines([sys.executable, f"{here}/peers/torch_baseline.py", *[f"{p}:fp32" for p in peers.values()]])
        best = {ours_name: r for ours_name, r in zip(peers, found)}
    return best


try:
    import torch as found
    version = found.__version__
except ImportError:
    version = None
rounds = [(ours(), torch() if version else {}, ours("--compile")) for _ in range(args.rounds)]
device = next(iter(rounds[0][0].values()))["device"]
print(f"{device}; f32{' (TF32)' if args.device == 'cuda' else ''}, whole training step, median of {args.rounds} rounds of five\n")
print(f"| workload | gtrain ms | gtrain compiled ms | PyTorch {version or 'not found'} ms | PyTorch / gtrain | PyTorch / compiled |")
print("| --- | --- | --- | --- | --- | --- |")
for w in workloads:
    a = statistics.median(r[0][w]["ms"] for r in rounds)
    b = statistics.median(r[1][w]["ms"] for r in rounds) if version else float("nan")
    c = statistics.median(r[2][w]["ms"] for r in rounds)
    print(f"| {w} | {a:.3f} | {c:.3f} | {b:.3f} | {b / a:.2f} | {b / c:.2f} |")
