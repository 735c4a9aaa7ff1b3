"""Public programs that come as packages, healthy and with a fault from outside: one table.

    python benchmarks/strangers.py [--only NAME ...] [--keep DIR]

A program is one file `strangers/NAME.yaml`:

    environment   where it runs, of `strangers/environments.yaml`; made when it is first needed
    prepare       what makes more material for it
    command       how it is started; $material, $out, $here and $port are filled in
    variables     of the environment, as the user has set them
    steps         how many updates it makes, where that is certain
    weight        FILE TENSOR of the material: one element of the broken copy is not a number
    tensor        the name under which the program knows it, where that is another
    healthy, broken   values of more words of the command, where it is a setting that is broken
    step, cause, symptom, exit   what is true of the broken run: 1, corrupt-checkpoint, any and 3 unless given

Each runs alone, then under `finitune run`, then broken under it. The weights that it saves are compared byte by byte,
unless they differ from run to run without finitune too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent / "strangers"
ROOT = HERE.parents[1]
COLUMNS = ("exit", "identical", "steps", "silent", "caught", "step", "tensor", "cause", "ends", "saved")
SAVED = (".safetensors", ".pth", ".pt", ".ckpt")
MINUTES = 10
LAYER = "import site; site.addsitedir({!r})"
READABLE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "120"}


@dataclass(slots=True, kw_only=True)
class Row:
    """What was found of one program: column -> what differs from the truth, "" where nothing does."""

    name: str
    found: dict[str, str] = field(default_factory=dict[str, str])
    seconds: tuple[float, float] = (0.0, 0.0)
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    err: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description="finitune under public programs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these programs")
    parser.add_argument("--keep", type=Path, help="leave materials, outputs and recordings in this folder")
    asked = parser.parse_args()
    programs = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.yaml"))}
    names = asked.only or [name for name, spec in programs.items() if "command" in spec]
    with tempfile.TemporaryDirectory() as temporary:
        place = (asked.keep or Path(temporary)).resolve()
        material = place / "material"
        if not material.exists():
            subprocess.run([sys.executable, HERE / "materials.py", material], check=True, env=os.environ | READABLE)
        rows = []
        for name in names:
            try:
                rows.append(tried(name, programs[name], place / name, material))
            except subprocess.TimeoutExpired:
                rows.append(Row(name=name, failed=f"not judged: one of its runs did not end in {MINUTES} minutes"))
            print(line(rows[-1], max(map(len, names))), flush=True)
    print(
        "\n"
        + " ".join(
            f"{c} {sum(not r.found.get(c, '-') for r in rows)}/{sum(c in r.found for r in rows)}" for c in COLUMNS
        )
    )
    for row in rows:
        for column in (c for c in COLUMNS if row.found.get(c)):
            print(f"{row.name}, {column}: {row.found[column]}")
    return int(any(row.failed or any(row.found.values()) for row in rows))


def line(row: Row, width: int) -> str:
    cells = [
        f"{column} {'-' if column not in row.found else 'NO' if row.found[column] else 'yes'}" for column in COLUMNS
    ]
    alone, watched = row.seconds
    return f"{row.name:{width}}  " + (
        row.failed or "  ".join(cells) + f"  {alone:.0f} s alone, {watched:.0f} s watched"
    )


def tried(name: str, truth: Mapping[str, Any], place: Path, material: Path) -> Row:
    """Run one program three times and compare."""
    row = Row(name=name)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(material, place / "material")
    python = environment(truth["environment"])
    words = {
        "material": str(place / "material"), "out": str(place / "out"), "here": str(HERE), "port": str(free_port()),
        "broken": "", **truth.get("healthy", {}),
    }  # fmt: skip
    if "prepare" in truth:
        ran(truth["prepare"], words, python, place)
    more = {key: Template(value).substitute(words) for key, value in truth.get("variables", {}).items()}
    alone = ran(truth["command"], words, python, place, more)
    (place / "out").rename(place / "out-alone") if (place / "out").exists() else (place / "out-alone").mkdir()
    if alone.code:
        row.failed = f"not judged: alone it ends with {alone.code}: {last(alone.err)}"
        return row
    watched = ran(truth["command"], words, python, place, more, watched=place / "run")
    (place / "out").rename(place / "out-watched")
    row.seconds = alone.seconds, watched.seconds
    row.found |= _healthy(truth, place, watched)
    if row.found["identical"]:  # is it the same twice without finitune?
        ran(truth["command"], words, python, place, more)
        if _different(place / "out-alone", place / "out"):
            del row.found["identical"]
        shutil.rmtree(place / "out")

    broken = words | {"broken": "broken"} | truth.get("broken", {})
    if "weight" in truth:
        spoil(place / "material" / truth["weight"].split()[0], truth["weight"].split()[1])
    if "prepare" in truth:
        ran(truth["prepare"], broken, python, place)
    if "weight" in truth:
        spoil(place / "material" / truth["weight"].split()[0], truth["weight"].split()[1])
    row.found |= _broken(truth, place, ran(truth["command"], broken, python, place, more, watched=place / "broken"))
    return row


def environment(name: str) -> Path:
    """The Python of an environment, made where it is not there."""
    if name == "ludwig":
        return ROOT / ".venv-ludwig" / "bin" / "python"
    spec = yaml.safe_load((HERE / "environments.yaml").read_text(encoding="utf-8"))[name]
    if not spec:
        return Path(sys.executable)
    place = ROOT / f".venv-strangers-{name}"
    python = place / "bin" / "python"
    if (place / ".made").exists():
        return python
    print(f"making {place.name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", place], check=True)
    asks = "import sysconfig; print(sysconfig.get_path('purelib'))"
    inside, ours = (Path(subprocess.check_output([p, "-c", asks], text=True).strip()) for p in (python, sys.executable))
    if spec.get("over"):
        (inside / "base.pth").write_text(LAYER.format(str(ours)), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-qq", *spec["install"], "-c", ROOT / "constraints.txt"], check=True)
    if "remove" in spec:
        subprocess.run([*pip, "uninstall", "-qq", "--yes", *spec["remove"]], check=True)
    for module in spec.get("empty", ()):
        (inside / f"{module}.py").write_text("", encoding="utf-8")
    (place / ".made").touch()
    return python


def ran(
    command: str, words: Mapping[str, Any], python: Path, place: Path, more: Mapping[str, str] = {}, *,
    watched: Path | None = None,
) -> Ended:  # fmt: skip
    """`command` in its environment, in a folder of its own; under finitune where `watched` names the recording."""
    argv = shlex.split(Template(command).substitute(words))
    if watched is not None:
        argv = [sys.executable, "-m", "finitune", "run", "--run-dir", str(watched), "--", *argv]
    env = os.environ | READABLE | {"MATERIAL": str(words["material"]), "OUT": str(words["out"])} | dict(more)
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    began = time.perf_counter()
    log = place / f"{'prepare' if 'prepare' in command else watched.name if watched else 'alone'}.log"
    with log.open("wb") as out:
        done = subprocess.run(
            argv, check=False, stdout=out, stderr=subprocess.STDOUT, cwd=place, env=env, timeout=60 * MINUTES
        )
    return Ended(code=done.returncode, err=log.read_text(errors="replace"), seconds=time.perf_counter() - began)


def spoil(file: Path, tensor: str) -> None:
    """One element of one tensor is not a number, as after a write that went wrong."""
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    tensors[tensor].view(-1)[37] = float("nan")
    save_file(tensors, file, metadata=metadata)


def _healthy(truth: Mapping[str, Any], place: Path, watched: Ended) -> dict[str, str]:
    report = _report(place / "run")
    said = [text for text in re.split(r"[\r\n]+", watched.err) if "finitune:" in text]
    count = report.get("steps")
    return {
        "exit": f"ends with {watched.code}: {last(watched.err)}" if watched.code else "",
        "identical": _different(place / "out-alone", place / "out-watched"),
        "steps": "" if count == truth.get("steps", count) and count else f"{count} of {truth.get('steps', 'some')}",
        "silent": ""
        if len(said) == 1 and report.get("verdict") == "healthy"
        else f"{report.get('verdict')}: {said[:3]}",
    }


def _broken(truth: Mapping[str, Any], place: Path, ended: Ended) -> dict[str, str]:
    incidents = [i for i in _report(place / "broken").get("incidents", []) if i.get("level", "incident") == "incident"]
    wanted, exit_code = truth.get("cause", ["corrupt-checkpoint"]), truth.get("exit", 3)
    found = {
        "ends": "" if ended.code == exit_code else f"ends with {ended.code}, expected {exit_code}: {last(ended.err)}",
        "saved": ", ".join(name for name in _nonfinite(place / "out") if "nonfinite" not in name),
    }
    if not incidents:
        return {"caught": f"no incident; {last(ended.err)}"} | found
    first = incidents[0]
    low, _, high = str(truth.get("step", 1)).partition("..")
    steps = range(int(low), int(high or low) + 1)
    causes = [cause["cause"] for cause in first.get("causes") or []]
    found |= {
        "caught": ""
        if first.get("symptom") == truth.get("symptom", first.get("symptom"))
        else str(first.get("symptom")),
        "step": "" if first.get("step") in steps else f"step {first.get('step')}",
        "cause": "" if causes[:1] and causes[0] in wanted else f"{causes[:2]}",
    }
    tensor = truth.get("tensor") or truth.get("weight", " ").split()[-1:]
    if tensor:
        name = tensor if isinstance(tensor, str) else tensor[0]
        origin = first.get("origin") or {}
        held = name in (origin.get("tensor") or "") or name.rpartition(".")[0] in (origin.get("module") or "")
        found["tensor"] = (
            ""
            if held
            else f"{origin.get('module')} {origin.get('op')} {origin.get('tensor')}; {first.get('not_located')}"
        )
    return found


def _report(run: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "finitune", "diagnose", str(run), "--format", "json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"verdict": f"not read: {last(done.stderr)}"}


def _different(alone: Path, watched: Path) -> str:
    """The saved weights that are not the same, byte for byte."""
    names = {str(p.relative_to(alone)) for p in alone.rglob("*") if p.suffix in SAVED and not p.is_symlink()}
    others = {str(p.relative_to(watched)) for p in watched.rglob("*") if p.suffix in SAVED and not p.is_symlink()}
    if not names:
        return "" if not others else f"only watched: {sorted(others)}"
    changed = [n for n in sorted(names & others) if (alone / n).read_bytes() != (watched / n).read_bytes()]
    return ", ".join(sorted(names ^ others) + changed)


def _nonfinite(out: Path) -> list[str]:
    bad = []
    for file in sorted(out.rglob("*.safetensors")) if out.exists() else []:
        if any(bool((~t.isfinite()).any()) for t in load_file(file).values() if t.is_floating_point()):
            bad.append(str(file.relative_to(out)))
    return bad


def last(text: str) -> str:
    """The last line that says something."""
    lines = [one.strip() for one in re.split(r"[\r\n]+", text) if one.strip()]
    return lines[-1][:200] if lines else ""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
