"""How fast weights are scanned, against a plain read of the same bytes from the page cache in the same run.

    python benchmarks/scan.py [--gib 1] [--dtype BF16] [--rounds 7]

Prints the medians and the ratio (DESIGN section 8 asks for 60 % or more, and for less than 1 GiB of memory). The
plain read is one thread that reads 1 MiB at a time into one buffer; it runs right before and after every scan, because
other work on the machine changes both alike. Start-up is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from finitune.sources.safetensors import ITEM_BYTES, read_header
from finitune.sources.scan import scan

COLUMNS = 4096


def write_shard(path: Path, size: int, dtype: str) -> None:
    """Normal weights of rms 0.02 in one safetensors file, written piece by piece."""
    rows = size // 8 // COLUMNS // ITEM_BYTES[dtype]
    step = rows * COLUMNS * ITEM_BYTES[dtype]
    entries = {
        f"w{i}": {"dtype": dtype, "shape": [rows, COLUMNS], "data_offsets": [i * step, (i + 1) * step]}
        for i in range(8)
    }
    header = json.dumps(entries).encode()
    values = np.random.default_rng(0).standard_normal((rows, COLUMNS), dtype=np.float32) * np.float32(0.02)
    if dtype == "BF16":
        raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        raw = values.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in entries:
            file.write(raw)


def plain_read(path: Path) -> float:
    """Seconds to read the file once into a buffer of 1 MiB."""
    view = memoryview(bytearray(2**20))
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(view):
            pass
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--dtype", default="BF16", choices=["BF16", "F16", "F32"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_shard(path, int(options.gib * 2**30), options.dtype)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        tensors = read_header(path)
        size = path.stat().st_size
        plain_read(path)
        scan(tensors, compute="float16")
        ratios, reads, scans = [], [], []
        for _ in range(options.rounds):
            first = plain_read(path)
            start = time.perf_counter()
            scan(tensors, compute="float16")
            took = time.perf_counter() - start
            read = (first + plain_read(path)) / 2
            ratios.append(read / took)
            reads.append(size / read / 1e9)
            scans.append(size / took / 1e9)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{size / 2**30:.2f} GiB of {options.dtype}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    print(f"plain read   {statistics.median(reads):6.2f} GB/s")
    print(f"scan         {statistics.median(scans):6.2f} GB/s")
    low, high = 100 * min(ratios), 100 * max(ratios)
    print(f"ratio        {100 * statistics.median(ratios):6.1f} %  (rounds {low:.0f} to {high:.0f} %)")
    print(f"peak memory  {after:6.2f} GiB  (before the scan, with the weights being made: {before:.2f})")


if __name__ == "__main__":
    main()
