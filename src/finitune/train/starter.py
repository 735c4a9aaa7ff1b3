"""The file that `finitune init` writes: the settings that a user decides on, each with a line on what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.sources.gather import gather
from finitune.sources.text import reason
from finitune.train.plan import LEARNING_RATE

LARGE = 1_000_000_000
"""Weights from which on an adapter is proposed: in full, 16 bytes each for weights, gradients and Adam's state."""

TEXT = """\
# finitune train {name}           trains as this file says
# finitune train --plan {name}    shows every choice with its reason, and trains nothing
# The names are those of TRL (SFTConfig, ModelConfig) and mean what they mean there. What is left out is chosen.

model_name_or_path: {model}
dataset_name: {data}
output_dir: {output}          # final/ is the result; a run that was killed goes on from checkpoint-N

# {size}
use_peft: {adapter}                    # true: LoRA, a small adapter beside frozen weights; false: all weights
{lora}lora_r: 16
{lora}lora_alpha: 32
# load_in_4bit: true               # QLoRA: the frozen weights in 4 bits (needs use_peft and bitsandbytes)

num_train_epochs: 3
per_device_train_batch_size: 8
# gradient_accumulation_steps: 1
# learning_rate: {rate}           # chosen: {rate} for {kind}
# bf16: true                       # chosen by the hardware; fp16: true on cards without bfloat16
seed: 42

finitune:
  mode: guard                      # observe: alter nothing; heal: also apply remedies whose cause was proved
  # gpu: V100                      # plan for this card, where it is not the one at hand
  # repair_tokens: false           # leave embedding rows that were never trained as they are
  # merge: false                   # keep the adapter alone
"""


def starter(model: str | Path, data: str | Path, output: str | Path) -> Path:
    """Write the file; model and data are read first.

    Raises UnreadableInput for a model or data that cannot be read, and for a file that is there.
    """
    output = Path(output)
    if output.exists() or output.is_symlink():
        raise UnreadableInput(f"{output}: already there (expected a new file)")
    if not (Path(model) / "config.json").is_file():
        raise UnreadableInput(f"{model}: no config.json here (expected the directory of a model)")
    facts = gather({"learning_rate": LEARNING_RATE["full"]}, model=model, data=data).facts
    weights = sum(_count(one.shape) for one in facts.weights.tensors) if facts.weights else 0
    adapter = weights >= LARGE
    kind = "adapter" if adapter else "full"
    rows = f"{facts.tokens.sequences:,} rows" if facts.tokens else "rows"
    text = TEXT.format(
        name=output.name, model=json.dumps(str(model)), data=json.dumps(str(data)), output="outputs",
        lora="" if adapter else "# ",
        size=f"{weights:,} weights, {rows}", adapter=str(adapter).lower(), rate=f"{LEARNING_RATE[kind]:.1e}",
        kind="adapters" if adapter else "all weights",
    )  # fmt: skip
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UnreadableInput(f"{output}: {reason(error)} (expected to write there)") from None
    return output


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
