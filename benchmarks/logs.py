"""How fast logs are read: 100 MB of three kinds, written for the occasion.

    python benchmarks/logs.py [MEGABYTES]

mixed     a record per ten drawings of a progress bar and one line of another kind, as a terminal shows it
records   nothing but records of HF Trainer, the most rows that a log can hold
other     lines without a number of training in them
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from finitune.sources import logs

RECORD = b"{'loss': 2.3451, 'grad_norm': 1.2345678, 'learning_rate': 1.9e-05, 'epoch': 0.12}\n"
BAR = b"\r  1%|\xe2\x96\x8f         | 12/1000 [00:05<07:02,  2.34it/s]"
OTHER = b"[INFO|trainer.py:2123] 2026-01-01 00:00:00,000 >> Saving model checkpoint to outputs/checkpoint-100\n"
KINDS = {"mixed": BAR * 10 + b"\n" + RECORD + OTHER, "records": RECORD, "other": OTHER}


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        for kind, block in KINDS.items():
            path = Path(folder) / f"{kind}.log"
            path.write_bytes(block * (size * 10**6 // len(block)))
            start, spent = time.perf_counter(), time.process_time()
            reading = logs.read(path)
            took, spent = time.perf_counter() - start, time.process_time() - spent
            rows = sum(len(attempt.trace("loss")) for attempt in reading.attempts)
            megabytes = path.stat().st_size / 1e6
            print(f"{kind:8} {megabytes:5.0f} MB {rows:9,} rows {took:6.2f} s, of the processor {spent:5.2f} s")
        tracemalloc.start()
        logs.read(Path(folder) / "other.log")
        print(f"memory beside the rows, {size} MB: {tracemalloc.get_traced_memory()[1] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
