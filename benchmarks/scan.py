"""How fast `finitune check` reads weights, embedding rows and tokens, and in how much memory.

    python benchmarks/scan.py [--gib 8] [--rounds 7]

Prints each figure beside its target (DESIGN section 8) and returns 1 when one is missed. The plain read is one thread
that reads 1 MiB at a time from the page cache into one buffer; it runs right before and after every scan, because
other work on the machine changes both alike. Memory is the peak of a `finitune check` of its own over a sharded model
of `--gib` GiB, written to the temporary directory and removed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from finitune.sources.data import tokenised
from finitune.sources.data.tokenizer import Encoded
from finitune.sources.weights.embedding_rows import embedding_rows
from finitune.sources.weights.safetensors import ITEM_BYTES, read_header
from finitune.sources.weights.scan import scan

VOCABULARY, COLUMNS = 150_000, 4096
TOKENS_PER_ROW = 512
TOKENS = 4_000_000


def write_shard(path: Path, shapes: Mapping[str, Sequence[int]], dtype: str) -> None:
    """Normal weights of rms 0.02 in one safetensors file, written piece by piece."""
    sizes = {name: int(np.prod(shape)) * ITEM_BYTES[dtype] for name, shape in shapes.items()}
    entries, end = {}, 0
    for name, shape in shapes.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    header = json.dumps(entries).encode()
    values = np.random.default_rng(0).standard_normal(2**23, dtype=np.float32) * np.float32(0.02)
    if dtype == "BF16":
        piece = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        piece = values.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for begin in range(0, end, len(piece)):
            file.write(piece[: min(len(piece), end - begin)])


def plain_read(*paths: Path) -> float:
    """Seconds to read the files once into a buffer of 1 MiB."""
    view = memoryview(bytearray(2**20))
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(view):
                pass
    return time.perf_counter() - start


def against_plain_read(work: Callable[[], object], path: Path, rounds: int) -> tuple[float, float, list[float]]:
    """Median seconds of a plain read and of the work, and the ratio of the two in each round."""
    plain_read(path)
    work()
    reads, works = [], []
    for _ in range(rounds):
        first = plain_read(path)
        start = time.perf_counter()
        work()
        works.append(time.perf_counter() - start)
        reads.append((first + plain_read(path)) / 2)
    ratios = [read / took for read, took in zip(reads, works, strict=True)]
    return statistics.median(reads), statistics.median(works), ratios


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def weights(folder: Path, rounds: int) -> bool:
    """On a machine that is busy the threads of the scan wait for each other, so its CPU time is printed too."""
    good = True
    for dtype in ("BF16", "F16", "F32"):
        path = folder / "model.safetensors"
        write_shard(path, {f"w{i}": (2**27 // COLUMNS // ITEM_BYTES[dtype], COLUMNS) for i in range(8)}, dtype)
        tensors, size = read_header(path), path.stat().st_size / 1e9
        read, took, ratios = against_plain_read(lambda t=tensors: scan(t, compute="float16"), path, rounds)
        ratio, cost = (
            statistics.median(ratios),
            cpu(lambda p=path: plain_read(p)) / cpu(lambda t=tensors: scan(t, compute=None)),
        )
        good &= ratio >= 0.6
        rates = f"plain read {size / read:5.2f} GB/s, scan {size / took:5.2f} GB/s"
        spread = f"{min(ratios):.0%} to {max(ratios):.0%}"
        print(f"weights {dtype:4}    {rates}: {ratio:.0%} (rounds {spread}; target 60 %); by CPU time {cost:.0%}")
    return good


def embedding(folder: Path, rounds: int) -> bool:
    path = folder / "model.safetensors"
    write_shard(path, {"embed_tokens.weight": (VOCABULARY, COLUMNS)}, "BF16")
    (tensor,) = read_header(path)

    def both() -> None:
        scan([tensor], compute="float16")
        embedding_rows(tensor, compute="float16")

    read, took, _ = against_plain_read(both, path, rounds)
    _, rows, _ = against_plain_read(lambda: embedding_rows(tensor, compute="float16"), path, rounds)
    print(
        f"embedding       {VOCABULARY} x {COLUMNS}: scan and rows {took:.2f} s, of these the rows {rows:.2f} s, "
        f"plain read {read:.2f} s (target 3 s)"
    )
    return took < 3


def census() -> bool:
    """From what the tokenizer returned to counts of ids and labels, with an answer in every fourth part of a row."""
    rng = np.random.default_rng(0)
    spans = [(4 * i, 4 * i + 4) for i in range(TOKENS_PER_ROW)]
    answers = [(i, i + TOKENS_PER_ROW // 2) for i in range(0, 4 * TOKENS_PER_ROW, TOKENS_PER_ROW)]
    text = tokenised._Text(text="", special=False, supervised=answers)
    encoded = [
        Encoded(ids=rng.integers(0, VOCABULARY, TOKENS_PER_ROW).tolist(), spans=spans)
        for _ in range(TOKENS // TOKENS_PER_ROW)
    ]
    start = time.process_time()  # one thread that never waits
    counts = tokenised._Census()
    for one in encoded:
        counts.add(tokenised._encoded_row(one, text, None, []))
    found = counts.use(None, "benchmark")
    rate = int(found.counts.sum()) / (time.process_time() - start)
    print(
        f"token census    {rate / 1e6:.1f} million ids per CPU second with labels, rows of {TOKENS_PER_ROW} (target 10)"
    )
    return rate >= 1e7


def memory(folder: Path, gib: float) -> bool:
    """A sharded model, checked in a process of its own."""
    shards = max(1, round(gib / 2))
    left = int(gib * 2**30) - VOCABULARY * COLUMNS * 2
    rows = max(1, left // shards // 4 // COLUMNS // 2)
    weight_map, files = {}, []
    for shard in range(shards):
        shapes = {f"model.layers.{shard}.w{i}.weight": (rows, COLUMNS) for i in range(4)}
        if shard == 0:
            shapes = {"model.embed_tokens.weight": (VOCABULARY, COLUMNS), **shapes}
        files.append(folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors")
        write_shard(files[-1], shapes, "BF16")
        weight_map |= dict.fromkeys(shapes, files[-1].name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCABULARY}))
    (folder / "run.json").write_text(json.dumps({"fp16": True, "learning_rate": 1e-5}))
    read = min(plain_read(*files) for _ in range(2))
    size = sum(file.stat().st_size for file in files)
    command = [sys.executable, "-m", "finitune", "check", str(folder / "run.json"), "--model", str(folder)]
    start = time.perf_counter()
    # ru_maxrss of a child begins with that of its parent, so one that is small stands between
    measure = "import os, resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", measure, *command, "--fail-on", "never"], stdout=subprocess.PIPE, check=True, text=True
    )
    took, peak = time.perf_counter() - start, int(done.stdout) / 2**20
    print(
        f"memory          {size / 1e9:.1f} GB in {shards} files: peak {peak:.2f} GiB (target 1); "
        f"the whole check {took:.1f} s, plain read {read:.1f} s"
    )
    return peak < 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        good = [weights(Path(folder), options.rounds), embedding(Path(folder), options.rounds), census()]
        (Path(folder) / "model.safetensors").unlink()
        good.append(memory(Path(folder), options.gib))
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
