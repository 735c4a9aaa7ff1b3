"""How fast logs are read: 100 MB of each kind, written for the occasion.

    python benchmarks/logs.py [MEGABYTES]

mixed     a record per ten drawings of a progress bar and one line of another kind, as a terminal shows it
records   nothing but records of HF Trainer, the most rows that a log can hold
bars      nothing but drawings of Lightning's progress bar, each with its loss
steps     nothing but lines of a plain loop
scaler    nothing but DeepSpeed's lines about skipped steps
other     lines without a number of training in them
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from finitune.sources import logs

RECORD = b"{'loss': 2.3451, 'grad_norm': 1.2345678, 'learning_rate': 1.9e-05, 'epoch': 0.12}\n"
BAR = b"\r  1%|\xe2\x96\x8f         | 12/1000 [00:05<07:02,  2.34it/s]"
OTHER = b"[INFO|trainer.py:2123] 2026-01-01 00:00:00,000 >> Saving model checkpoint to outputs/checkpoint-100\n"
DRAWN = b"\rEpoch 0:  12%|#2        | 12/100 [00:05<00:37,  2.34it/s, v_num=3, train_loss=2.34, grad_norm=1.25]"
STEP = b"step 1201 | loss 2.3451 | grad_norm 1.2345 | lr 1.9e-05\n"
SKIPPED = (
    b"[2026-01-01 00:00:00,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
    b"Attempted loss scale: 65536, reducing to 32768\n"
)
KINDS = {
    "mixed": BAR * 10 + b"\n" + RECORD + OTHER,
    "records": RECORD,
    "bars": DRAWN * 50 + b"\n",
    "steps": STEP,
    "scaler": SKIPPED,
    "other": OTHER,
}


def clocked(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds that passed, and seconds of this processor."""
    start, spent = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - spent


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        for kind, block in KINDS.items():
            path = Path(folder) / f"{kind}.log"
            path.write_bytes(block * (size * 10**6 // len(block)))
            plain, _ = clocked(lambda path=path: path.read_bytes())
            words, _ = clocked(
                lambda path=path: subprocess.run(["grep", "-c", "loss", path], check=False, capture_output=True)
            )
            took, spent = clocked(lambda path=path: logs.read(path))
            megabytes = path.stat().st_size / 1e6
            print(
                f"{kind:8} {megabytes:5.0f} MB {took:6.2f} s, of the processor {spent:5.2f} s; "
                f"reading the bytes {plain:5.2f} s, grep -c loss {words:5.2f} s"
            )
        tracemalloc.start()
        logs.read(Path(folder) / "other.log")
        print(f"memory beside the rows, {size} MB: {tracemalloc.get_traced_memory()[1] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
