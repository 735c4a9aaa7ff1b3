"""How fast logs are read: 100 MB of each kind, written for the occasion.

    python benchmarks/log_speed.py [MEGABYTES]

mixed     a record per ten drawings of a progress bar and one line of another kind, as a terminal shows it
records   nothing but records of HF Trainer, the most rows that a log can hold
bars      nothing but drawings of Lightning's progress bar, each with its loss
steps     nothing but lines of a plain loop
scaler    nothing but DeepSpeed's lines about skipped steps
other     lines without a number of training in them
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import finitune
from finitune.finding import UnreadableInput
from finitune.sources import logs

RECORD = "{{'loss': {loss:.4f}, 'grad_norm': {norm:.7f}, 'learning_rate': {rate:.4g}, 'epoch': {epoch:.2f}}}\n"
BAR = "\r  1%|\u258f         | {bar}/9999999 [00:05<07:02,  2.34it/s]"
OTHER = (
    "[INFO|trainer.py:2123] 2026-01-01 00:00:{second:02d},000 >> Saving model checkpoint to outputs/checkpoint-{step}\n"
)
DRAWN = (
    "\rEpoch {round}: {part:3d}%|{full:10}| {part}/100 [00:{second:02d}<00:37, {speed:5.2f}it/s, v_num=3, "
    "train_loss={loss:.2f}, grad_norm={norm:.2f}]"
)
STEP = "step {step} | loss {loss:.4f} | grad_norm {norm:.4f} | lr {rate:.2g}\n"
SKIPPED = (
    "[2026-01-01 00:00:{second:02d},000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
    "Skipping step. Attempted loss scale: {scale}, reducing to {scale}\n"
)


def mixed(step: int) -> str:
    return "".join(BAR.format(bar=10 * step + n) for n in range(10)) + "\n" + RECORD + OTHER


def bars(step: int) -> str:
    return DRAWN + ("\n" if step % 100 == 99 else "")


KINDS: dict[str, Callable[[int], str]] = {
    "mixed": mixed,
    "records": lambda _: RECORD,
    "bars": bars,
    "steps": lambda _: STEP,
    "scaler": lambda _: SKIPPED,
    "other": lambda _: OTHER,
}


def write(path: Path, kind: str, size: int) -> None:
    """A log of about `size` bytes; no two of its lines have the same numbers."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for step in itertools.count():
            wave = math.sin(step)
            numbers = {
                "step": step, "loss": 2.5 + wave, "norm": 1.5 + wave, "rate": 2e-5 / (1 + step / 1e5),
                "epoch": step / 1000, "round": step // 100, "part": step % 100, "second": step % 60,
                "full": "#" * (step % 100 // 10), "speed": 10 + 9 * wave, "scale": 2 ** (16 - step % 16),
            }  # fmt: skip
            file.write(KINDS[kind](step).format(**numbers))
            if step % 1000 == 0 and file.tell() >= size:
                return


def clocked(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds that passed, and seconds of this processor."""
    start, spent = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - spent


def diagnosed(path: Path) -> None:
    """As `finitune diagnose LOG`; a log without training in it is refused after it was read."""
    with contextlib.suppress(UnreadableInput):
        finitune.diagnose(path)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"{kind}.log"
            write(path, kind, size * 10**6)
            plain, _ = clocked(lambda path=path: path.read_bytes())
            words, _ = clocked(
                lambda path=path: subprocess.run(["grep", "-c", "loss", path], check=False, capture_output=True)
            )
            took, spent = clocked(lambda path=path: logs.read(path))
            asked, judged = clocked(lambda path=path: diagnosed(path))
            megabytes = path.stat().st_size / 1e6
            print(
                f"{kind:8} {megabytes:5.0f} MB {took:6.2f} s, of the processor {spent:5.2f} s; "
                f"with the diagnosis {asked:5.2f} s, of the processor {judged:5.2f} s; "
                f"reading the bytes {plain:5.2f} s, grep -c loss {words:5.2f} s"
            )
        tracemalloc.start()
        logs.read(Path(folder) / "other.log")
        print(f"memory beside the rows, {size} MB: {tracemalloc.get_traced_memory()[1] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
