"""Every Python file and notebook of the installed packages that knows torch, read as `finitune check` reads it.

    python benchmarks/read_scripts.py [FOLDER...] [--sources FOLDER] [--seconds N]

Prints for each folder how many files there are, how many of them train, how long a file takes, and every traceback.
Without a folder: transformers, trl, peft, accelerate, torch/optim and the others that are installed, and the source
distributions (NAME-VERSION.tar.gz) that lie in `--sources`, which also hold tests, and examples where their project
puts them in. Exit 1 where a file raised anything but the one line of unreadable input, or took longer than `--seconds`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import time
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

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
SOURCES = ("transformers", "trl", "peft", "accelerate")
"""Packages whose source distributions are looked for."""
MOST_LINES = 1


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="*", type=Path)
    options.add_argument("--seconds", type=float, default=10.0, help="longest time for one file")
    options.add_argument("--sources", type=Path, help="folder with source distributions")
    given = options.parse_args()
    folders: list[Path] = given.folders or [found for name in PACKAGES if (found := _folder(name))]
    print(f"{'folder':28} {'files':>6} {'train':>6} {'other':>6} {'failed':>6} {'ms/file':>8} {'slowest':>9}")
    bad = sum(_read_all(folder, given.seconds) for folder in folders)
    for name in SOURCES if given.sources else ():
        archive = next(iter(sorted(given.sources.glob(f"{name}-*.tar.gz"), reverse=True)), None)
        if archive is None:
            print(f"{name}: no source distribution in {given.sources}, so it was not read")
            continue
        bad += _read_archive(archive, given.seconds)
    return int(bad > 0)


def _read_archive(archive: Path, limit: float) -> int:
    with TemporaryDirectory() as folder, tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
        (inside,) = Path(folder).iterdir()
        held = {part: len(list((inside / part).rglob("*.py"))) for part in ("src", "tests", "examples")}
        said = ", ".join(f"{count:,} of {part}" for part, count in held.items() if count)
        print(
            f"{archive.name} holds {sum(1 for _ in inside.rglob('*.py')):,} Python files{f' ({said})' if said else ''}"
        )
        return _read_all(inside, limit)


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
