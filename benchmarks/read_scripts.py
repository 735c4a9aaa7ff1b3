"""Every Python file and notebook of the installed packages that knows torch, read as `finitune check` reads it.

    python benchmarks/read_scripts.py [FOLDER...] [--seconds N]

Prints for each folder how many files there are, how many of them train, how long a file takes, and every traceback.
Without a folder: transformers, trl, peft, accelerate, torch/optim and the others that are installed. Exit 1 where a
file raised anything but the one line of unreadable input, or took longer than `--seconds`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.preflight import check

PACKAGES = (
    "transformers", "trl", "peft", "accelerate", "torch", "datasets", "deepspeed", "lightning", "pytorch_lightning",
    "bitsandbytes", "torchao", "safetensors", "unsloth", "unsloth_zoo", "ludwig",
)  # fmt: skip
KNOWS = re.compile(
    rb"^\s*(?:from|import)\s+(?:torch|transformers|trl|peft|accelerate|lightning|pytorch_lightning|deepspeed|unsloth)\b",
    re.MULTILINE,
)
MOST_LINES = 1


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="*", type=Path)
    options.add_argument("--seconds", type=float, default=10.0, help="longest time for one file")
    given = options.parse_args()
    folders: list[Path] = given.folders or [found for name in PACKAGES if (found := _folder(name))]
    print(f"{'folder':28} {'files':>6} {'train':>6} {'other':>6} {'failed':>6} {'ms/file':>8} {'slowest':>9}")
    bad = 0
    for folder in folders:
        bad += _read_all(folder, given.seconds)
    return int(bad > 0)


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _read_all(folder: Path, limit: float) -> int:
    counts: Counter[str] = Counter()
    spent, slowest, failures = 0.0, (0.0, ""), list[str]()
    for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.ipynb")]):
        if not KNOWS.search(file.read_bytes()) and file.suffix == ".py":
            continue
        start = time.perf_counter()
        try:
            check(file)
            counts["train"] += 1
        except UnreadableInput as error:
            counts["other"] += 1
            if len(str(error).splitlines()) != MOST_LINES:
                failures.append(f"{file}: more than one line\n")
        except Exception:
            failures.append(f"{file}\n{traceback.format_exc()}")
        seconds = time.perf_counter() - start
        spent += seconds
        slowest = max(slowest, (seconds, file.name))
        if seconds > limit:
            failures.append(f"{file}: {seconds:.1f} s\n")
    files = counts.total() + len(failures)
    average = 1000 * spent / files if files else 0.0
    print(
        f"{folder.name:28} {files:6} {counts['train']:6} {counts['other']:6} {len(failures):6} {average:8.1f} "
        f"{slowest[0]:8.2f}s {slowest[1]}"
    )
    for failure in failures:
        print(failure)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
