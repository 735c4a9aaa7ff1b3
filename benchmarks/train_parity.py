"""`finitune train` beside a plain script with TRL: what both have learned from the demo's data, and what kills cost.

    python benchmarks/train_parity.py [SEEDS [WAY;...]]     by default seeds 51,52,53 and all ways

Both get the rows of `examples/yi`, the same model, steps, batch, rate and adapter; the rest is chosen by finitune, and
is TRL's default in `plain_trl.py`, which trains in one process. The loss is that of the answers in `eval.jsonl` under
what each has saved, in float32. It is reached where the mean over seeds is not above that of the plain runs by more
than NOISE times their spread. The run of the first seed is then repeated, killed with SIGKILL at three random moments,
and goes on by the same command: `kept` says whether its weights are those of the undisturbed one, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

YI = Path(__file__).parents[1] / "examples" / "yi"
NOISE = 2.0
LEAST_NOISE = 0.01
"""Of the loss; a few seeds may lie closer together than the steps of one run."""
KILLS = 3
BATCH = 8
COMMON: Mapping[str, Any] = {"num_train_epochs": 2, "logging_steps": 5, "gradient_checkpointing": False}
ZERO_2 = {
    "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True, "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
}  # fmt: skip
ADAPTER: Mapping[str, Any] = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train; `beside` names the plain run that it is compared with."""

    beside: str
    settings: Mapping[str, Any]
    processes: int = 1


FULL = {"learning_rate": 1e-3}
LORA = {"learning_rate": 4e-3, "use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05}
WAYS: Mapping[str, Way] = {
    "full": Way(beside="full", settings=FULL),
    "LoRA": Way(beside="LoRA", settings=LORA),
    "QLoRA": Way(beside="QLoRA", settings={**LORA, "load_in_4bit": True}),
    "DDP, 2 processes": Way(beside="full", settings=FULL, processes=2),
    "FSDP2, 2 processes": Way(beside="full", settings={**FULL, "fsdp": True}, processes=2),
    "FSDP2 with LoRA, 2 processes": Way(beside="LoRA", settings={**LORA, "fsdp": True}, processes=2),
    "ZeRO-2, 2 processes": Way(beside="full", settings={**FULL, "deepspeed": "zero2.json"}, processes=2),
}
PLAIN: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "full": (FULL, {}),
    "LoRA": ({"learning_rate": LORA["learning_rate"]}, ADAPTER),
    "QLoRA": ({"learning_rate": LORA["learning_rate"], "load_in_4bit": True}, ADAPTER),
}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}


def by_trl(kind: str, seed: int, home: Path) -> Path:
    """What the plain script has saved."""
    settings, adapter = PLAIN[kind]
    said = {**COMMON, **settings, "per_device_train_batch_size": BATCH, "seed": seed}
    output = home / f"plain {kind} {seed}"
    parts = [YI / "model", home / "rows.jsonl", output, json.dumps(said), json.dumps(adapter)]
    command = [sys.executable, Path(__file__).with_name("plain_trl.py"), *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home, env=environment())
    if done.returncode:
        raise SystemExit(f"the plain script failed: {done.stderr[-2000:]}")
    return output


def written(way: Way, seed: int, folder: Path) -> Path:
    """The file that `finitune train` is given."""
    folder.mkdir()
    (folder / "zero2.json").write_text(json.dumps(ZERO_2))
    said = {
        "model_name_or_path": str(YI / "model"), "dataset_name": str(YI / "train.jsonl"), "output_dir": "out",
        **COMMON, **way.settings, "per_device_train_batch_size": BATCH // way.processes, "seed": seed,
        "finitune": {"report": False},
    }  # fmt: skip
    file = folder / "train.json"
    file.write_text(json.dumps(said))
    return file


def start(way: Way, file: Path) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(way.processes)] if way.processes > 1 else []
    command = [sys.executable, *launcher, "-m", "finitune", "train", str(file)]
    around, log = environment(), file.with_suffix(".log")
    with log.open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, cwd=file.parent, env=around, text=True)


def finish(way: Way, file: Path) -> Path:
    code = start(way, file).wait()
    if code:
        raise SystemExit(f"{file}: finitune train ended with {code}: {file.with_suffix('.log').read_text()[-2000:]}")
    return file.parent / "out"


def killed(way: Way, file: Path, chance: random.Random, steps: int) -> None:
    """Start it KILLS times, and kill it and all that it started at a random step, at a random moment within it."""
    for number in range(KILLS):
        run = start(way, file)
        until = number * steps // KILLS + chance.randint(1, steps // KILLS - 1)
        while run.poll() is None and last_step(file.parent / "out") < until:
            time.sleep(0.02)
        time.sleep(chance.random() * 0.3)
        for pid in descendants(run.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.wait()


def descendants(pid: int) -> list[int]:
    """The process and all that it has started, itself first."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += descendants(int(child))
    return found


def last_step(output: Path) -> int:
    file = output / "finitune" / "rank00000.jsonl"
    rows = file.read_bytes().splitlines() if file.exists() else []
    last = 0
    for row in rows[-20:]:
        try:
            said = json.loads(row)
        except ValueError:  # half a row, the run goes on
            continue
        last = said["step"] if said.get("kind") == "step" else last
    return last


def same(one: Path, other: Path) -> bool:
    a, b = (
        {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()} for folder in (one, other)
    )
    return bool(a) and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def loss_of(saved: Path, base: Path, *, four: bool) -> float:
    """Mean over the tokens of all answers that were kept aside."""
    adapted = (saved / "adapter_config.json").exists()
    extra: dict[str, Any] = {}
    if four:
        bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
        extra = {"quantization_config": bits, "device_map": {"": "cpu"}}
    model: Any = AutoModelForCausalLM.from_pretrained(base if adapted else saved, dtype=torch.float32, **extra)
    model = PeftModel.from_pretrained(model, str(saved)) if adapted else model
    for part in model.modules():  # bitsandbytes packs a layer in eval mode for CPUs, which fails for some widths
        part.training = getattr(getattr(part, "weight", None), "quant_state", None) is not None
    words: Any = AutoTokenizer.from_pretrained(YI / "model")
    total = count = 0.0
    for line in (YI / "eval.jsonl").read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        asked = words.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
        ids = torch.tensor([words.apply_chat_template(messages, return_dict=True)["input_ids"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(asked) - 1 : -1]
        total += float(cross_entropy(logits.float(), ids[0, len(asked) :], reduction="sum"))
        count += ids.shape[1] - len(asked)
    return total / count


def main() -> int:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    seeds = [int(part) for part in (sys.argv[1] if len(sys.argv) > 1 else "51,52,53").split(",")]
    asked = {name: WAYS[name] for name in (sys.argv[2].split(";") if len(sys.argv) > 2 else WAYS)}
    worst = 0
    print(f"{'way':<22}{'plain TRL':>10}{'+-':>8}{'finitune':>10}{'difference':>12}  {'reached':<8}{'kept':<6}losses")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        rows = [json.loads(line)["messages"] for line in (YI / "train.jsonl").read_text(encoding="utf-8").splitlines()]
        pairs = [json.dumps({"prompt": said[:-1], "completion": said[-1:]}) for said in rows]
        (home / "rows.jsonl").write_text("\n".join(pairs) + "\n", encoding="utf-8")
        plain: dict[str, list[float]] = {}
        for name, way in asked.items():
            four = bool(way.settings.get("load_in_4bit"))
            if way.beside not in plain:
                saved = [by_trl(way.beside, seed, home) for seed in seeds]
                plain[way.beside] = [loss_of(path, YI / "model", four=four) for path in saved]
            theirs, ours = plain[way.beside], []
            for seed in seeds:
                output = finish(way, written(way, seed, home / f"{name} {seed}"))
                base = output / "base" if (output / "base").exists() else YI / "model"
                ours.append(loss_of(output / "final", base, four=four))
            undisturbed = home / f"{name} {seeds[0]}" / "out" / "final"
            file = written(way, seeds[0], home / f"{name} killed")
            killed(way, file, random.Random(seeds[0]), last_step(undisturbed.parent))
            kept = same(undisturbed, finish(way, file) / "final")
            mean, own = statistics.mean(theirs), statistics.mean(ours)
            spread = max(statistics.stdev(theirs) if len(seeds) > 1 else 0.0, LEAST_NOISE * mean)
            reached = own <= mean + NOISE * spread
            worst |= not (reached and kept)
            each = "; plain ".join(", ".join(f"{loss:.3f}" for loss in losses) for losses in (ours, theirs))
            said = f"{'yes' if reached else 'NO':<8}{'yes' if kept else 'NO':<6}{each}"
            print(f"{name:<22}{mean:>10.3f}{spread:>8.3f}{own:>10.3f}{own - mean:>+12.3f}  {said}", flush=True)
    return int(worst)


if __name__ == "__main__":
    raise SystemExit(main())
