"""Same symptom, different cause: one log, and what lies beside it decides; with nothing beside it, the check to make.

Each row of the taxonomy is one log in the format of a trainer, told to `finitune diagnose` by itself and with the
files that users have: settings, versions, a model directory, data, the name of the card, or further lines of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.diagnosis.logged.beside import (
    Inputs,
    args,
    arguments,
    card,
    engine,
    falling,
    names,
    of,
    record,
    releases,
    several,
    spoiled,
    told,
    unanswered,
    untrained,
)
from tests.sources import worlds

from finitune.cli.main import main


@dataclass(frozen=True, kw_only=True)
class World:
    """What lies beside the log: `files` writes it; `head` and `tail` are further lines of the same log."""

    files: Callable[[Path], Inputs] = lambda _: {}
    head: str = ""
    tail: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One symptom: its log, how the check begins that tells its causes apart, and a world for each cause."""

    log: str
    check: str
    causes: Mapping[str, World] = field(default_factory=dict)


HIDDEN = "".join(record("0.0", "nan", f"{2e-5 * (1 - n / 20):.6g}", 0.2 + 0.01 * n) for n in range(1, 9))
IN_FLOAT16 = arguments(bf16=False, fp16=True, gradient_accumulation_steps=4, max_grad_norm=1.0)
IN_BFLOAT16 = arguments(bf16=True, fp16=False, gradient_accumulation_steps=4, max_grad_norm=1.0)

race = World(files=partial(engine, overlap=True, version="0.15.4", bucket=5e7))
regression = World(files=partial(engine, overlap=None, version="0.12.5"))
capped = World(
    files=several(args(bf16=True, attn_implementation="flash_attention_2"), of("gemma2"), releases("flash-attn==2.6.1"))
)
cudnn = World(
    files=several(args(bf16=True, attn_implementation="sdpa"), card("H100"), releases("torch==2.5.0", "transformers"))
)
experts = World(
    files=several(args(bf16=True), of("mixtral", num_local_experts=8, experts_implementation="grouped_mm")),
    head="Loaded Mixtral with experts_implementation=grouped_mm\n",
)
chat_markers = World(files=several(args(bf16=True), untrained))
no_targets = World(files=several(args(bf16=True, assistant_only_loss=True), unanswered))
wide_model = World(files=several(args(fp16=True), of("qwen2"), card("V100")))

GENERATION = """\
Traceback (most recent call last):
  File "/home/user/chat.py", line 31, in <module>
    output = model.generate(**inputs, max_new_tokens=256)
  File "/opt/conda/lib/python3.10/site-packages/transformers/generation/utils.py", line 2024, in generate
    result = self._sample(
  File "/opt/conda/lib/python3.10/site-packages/transformers/generation/utils.py", line 3020, in _sample
    next_tokens = torch.multinomial(probs, num_samples=1).squeeze(1)
RuntimeError: probability tensor contains either `inf`, `nan` or element < 0
"""
EXCLAMATION = """\
Loading checkpoint shards: 100%|##########| 4/4 [00:07<00:00,  1.88s/it]
User: what is the capital of France
Assistant: !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!
"""
STEP = "[2024-05-14 09:22:{:02d},101] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 "
LADDER = "".join(
    STEP.format(n) + f"Skipping step. Attempted loss scale: {2**k}, "
    + ("but hysteresis is 2. Reducing hysteresis to 1\n" if not n else f"reducing to {2 ** (k - 1)}\n")
    for n, k in enumerate([16, *range(16, 0, -1)])
) + "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"  # fmt: skip

ONE_EPOCH = "".join(record(f"{2.31 + 0.37 * ((n * 7) % 12 - 6) / 6:.4f}", 1.31, "2e-06", n / 12) for n in range(12))
UNMOVED = ONE_EPOCH + "".join(
    record(f"{2.31 + 0.37 * ((n * 7) % 12 - 6) / 6:.4f}", 1.31, "2e-06", 1 + epoch + n / 12)
    for epoch in range(3)
    for n in range(12)
)

ROWS = {
    "loss 0.0 and grad_norm nan, float16": Row(
        log=IN_FLOAT16 + HIDDEN,
        check="the same batch in float32 or bfloat16 on the same device",
        causes={
            "fp16-activation-overflow": wide_model,
            "fully-masked-attention-rows": World(files=several(
                args(fp16=True, attn_implementation="eager", padding_side="left", per_device_train_batch_size=4),
                of())),
            "fp16-trainable-weights": World(files=several(
                args(fp16=True, dtype="float16", use_peft=False), of(dtype="float16"))),
            "quant-kernel-hardware": World(files=several(
                args(fp16=True, load_in_8bit=True, use_peft=True), card("V100"))),
        },
    ),
    "loss 0.0 and grad_norm nan, bfloat16": Row(
        log=IN_BFLOAT16 + HIDDEN,
        check="one batch with eager attention and without DeepSpeed",
        causes={
            "comm-overlap-race": race, "cudnn-sdpa-bug": cudnn, "flash-attention-bug": capped,
            "moe-kernel-uninit": experts, "deepspeed-version-regression": regression,
            "all-labels-ignored": no_targets, "untrained-token-embeddings": chat_markers,
        },
    ),
    **{
        f"grad_norm {norm} and loss 0": Row(
            log=record(2.2481, 3.1415, "1e-05", 0.01) + "".join(
                record("0.0", norm, f"{1e-5 - n * 1e-7:.3g}", 0.01 * (n + 1)) for n in range(1, 8)),
            check="count the optimizer's parameter groups",
            causes={"comm-overlap-race": race, "deepspeed-version-regression": regression,
                    "untrained-token-embeddings": chat_markers},
        )
        for norm in (1.0, 1.41421, 1.73205)
    },
    "first loss finite, gradient nan, then 0.0": Row(
        log=record(1.7342, "nan", "4e-06", 0.01) + HIDDEN,
        check="which gradient is the first that is not finite",
        causes={
            "fp16-backward-overflow": World(files=several(of(), lambda path: {"configs": [worlds.settings(
                path / "ds.json", zero_optimization={"stage": 0}, fp16={"enabled": True, "loss_scale": 65536})]})),
            "flash-attention-bug": capped, "cudnn-sdpa-bug": cudnn, "untrained-token-embeddings": chat_markers,
            "moe-kernel-uninit": experts,
        },
    ),
    "step 1 sound, weights nan after it": Row(
        log=record(2.1173, 3.4912, "2e-05", 0.01) + HIDDEN,
        check="print the dtype of the parameters that are trained",
        causes={
            "adam-eps-underflow-fp16": World(files=several(
                args(dtype="float16", optim="adamw_torch", use_peft=False), of(dtype="float16"))),
            "optimizer-8bit-bug": World(files=several(
                args(bf16=True, optim="adamw_bnb_8bit"), releases("bitsandbytes==0.40.2"))),
        },
    ),
    "loss 0.0 and grad_norm 0.0": Row(
        log="".join(record("0.0", "0.0", "2e-05", 0.01 * n) for n in range(1, 9)),
        check="count the supervised tokens",
        causes={
            "all-labels-ignored": no_targets,
            "gradient-checkpointing": World(files=args(
                bf16=True, use_peft=True, gradient_checkpointing=True,
                gradient_checkpointing_kwargs={"use_reentrant": True})),
        },
    ),
    "loss climbs for many steps, then nan": Row(
        log=falling(20) + "".join(
            record(round(1.9 * 1.35**n, 4), round(2.5 * 1.6**n, 4), "0.0002", 1 + 0.01 * n) for n in range(9))
        + record("nan", "nan", "0.0002", 1.1) * 4,
        check="the learning rate of every parameter group",
        causes={
            "lr-too-high": World(files=args(bf16=True, learning_rate=5e-3, use_peft=False, optim="adamw_torch")),
            "lora-scale-or-init": World(files=args(
                bf16=True, learning_rate=2e-4, use_peft=True, lora_r=8, lora_alpha=1024)),
        },
    ),
    "sound for long, then nan at once": Row(
        log=falling(2000) + "".join(record("nan", "nan", f"{1e-5 - n * 1e-8:.4g}", 1 + 0.001 * n) for n in range(6)),
        check="replay the step",
        causes={
            "comm-overlap-race": race,
            "bad-data-sample": World(tail=falling(2000) + "".join(
                record("nan", "nan", f"{1e-5 - n * 1e-8:.4g}", 1.001) for n in range(4))),
            "all-labels-ignored": World(files=several(
                args(bf16=True, assistant_only_loss=True, per_device_train_batch_size=1),
                partial(unanswered, rows=64, empty=1))),
            "fp16-activation-overflow": wide_model,
            "hardware-fault-sdc": World(tail=(
                "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")),
        },
    ),
    "eval_loss nan alone": Row(
        log=falling(40) + "{'eval_loss': nan, 'eval_runtime': 21.4, 'eval_samples_per_second': 9.3, 'epoch': 1.0}\n",
        check="count the supervised tokens of each evaluation batch",
        causes={
            "all-labels-ignored": World(files=several(args(bf16=True, assistant_only_loss=True), partial(
                unanswered, rows=16, empty=6))),
            "label-smoothing-fp16-sum": World(files=several(
                args(fp16=True, label_smoothing_factor=0.1, fp16_full_eval=True), releases("transformers==4.3.3"))),
            "fp16-activation-overflow": World(files=several(args(bf16=True, fp16_full_eval=True), of("qwen2"))),
            "fully-masked-attention-rows": World(files=several(
                args(fp16=True, attn_implementation="eager", padding_side="left", per_device_eval_batch_size=8,
                     per_device_train_batch_size=4), of())),
        },
    ),
    "probability tensor contains nan": Row(
        log=GENERATION,
        check="scan the saved weights",
        causes={
            "nan-saved-in-checkpoint": World(files=spoiled),
            "fp16-activation-overflow": World(files=several(args(dtype="float16"), of("qwen2"), card("V100"))),
            "inference-multi-gpu-or-dtype": World(files=several(args(dtype="bfloat16"), of()), head=(
                "hf_device_map: {'model.embed_tokens': 0, 'model.layers.0': 0, 'model.layers.16': 1, 'lm_head': 1}\n")),
            "corrupt-checkpoint": World(files=lambda path: {"model": worlds.model(
                path / "model", worlds.tensors(), vocab_size=worlds.VOCABULARY + 8)}),
            "rl-ratio-or-kl-overflow": World(head=(
                "{'loss': 0.0214, 'grad_norm': 1.93, 'learning_rate': 1e-06, 'reward': 0.41, 'kl': 0.002, "
                "'epoch': 0.1}\n"
                "{'loss': 31482.7, 'grad_norm': 8.1e+05, 'learning_rate': 1e-06, 'reward': 0.4, 'kl': 2417.9, "
                "'epoch': 0.2}\n")),
        },
    ),
    "output of exclamation marks": Row(
        log=EXCLAMATION,
        check="are the logits of one forward pass finite",
        causes={
            "nan-saved-in-checkpoint": World(files=spoiled),
            "fp16-activation-overflow": World(files=several(args(dtype="float16"), of("qwen2"), card("V100"))),
        },
    ),
    "loss scale falls to its minimum": Row(
        log=LADDER,
        check="is there overflow at loss scale 1",
        causes={
            "fp16-activation-overflow": wide_model,
            "untrained-token-embeddings": World(files=several(args(fp16=True), untrained)),
            "nan-saved-in-checkpoint": World(files=several(args(fp16=True), spoiled)),
        },
    ),
    "no nan and no learning": Row(
        log=UNMOVED,
        check="did any weight change",
        causes={
            "bf16-update-stagnation": World(files=several(
                args(dtype="bfloat16", bf16=True, use_peft=False, learning_rate=1e-6), of())),
            "gradient-checkpointing": World(files=args(
                bf16=True, use_peft=True, gradient_checkpointing=True,
                gradient_checkpointing_kwargs={"use_reentrant": True})),
            "lora-scale-or-init": World(files=args(bf16=True, use_peft=True, lora_r=8, lora_alpha=0)),
            "moe-router": World(files=several(args(bf16=True), of("mixtral", num_local_experts=8,
                                                                 num_experts_per_tok=1))),
        },
    ),
    "no learning under a huge gradient norm": Row(
        log="".join(record(f"{2.4 + 0.02 * (n % 5):.4f}", f"{1.3e18 * (1 + n % 3):.4g}", "2e-05", 0.01 * n)
                    for n in range(1, 41)),
        check="which gradient makes up the norm",
        causes={"untrained-token-embeddings": chat_markers},
    ),
}  # fmt: skip

PAIRS = [(row, cause) for row in ROWS for cause in ROWS[row].causes]


@pytest.mark.parametrize(("row", "cause"), PAIRS)
def test_what_lies_beside_the_log_decides(row: str, cause: str, tmp_path: Path) -> None:
    world = ROWS[row].causes[cause]
    found = told(tmp_path, world.head + ROWS[row].log + world.tail, world.files(tmp_path))
    assert found.incidents, "healthy"
    assert names(found.incidents[-1])[0] == cause, names(found.incidents[-1])


@pytest.mark.parametrize("row", ROWS)
def test_the_log_alone_keeps_causes_open_and_names_the_check(row: str, tmp_path: Path) -> None:
    (incident,) = told(tmp_path, ROWS[row].log).incidents
    assert len(incident.causes) > 1
    assert not any(cause.proved for cause in incident.causes)
    assert incident.next_check.startswith(ROWS[row].check), incident.next_check


def options(inputs: Inputs) -> list[str]:
    """The same inputs as a user types them."""
    words: list[str] = []
    for key, value in inputs.items():
        for one in value if key == "configs" else [value]:
            words += [f"--{'config' if key == 'configs' else key}", str(one)]
    return words


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("loss 0.0 and grad_norm nan, bfloat16", "untrained-token-embeddings"),
        ("loss scale falls to its minimum", "fp16-activation-overflow"),
    ],
)
def test_the_command_line_says_the_same(
    row: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(ROWS[row].log)
    command = ["diagnose", str(tmp_path / "train.log")]
    assert main(command) == 1
    alone = " ".join(capsys.readouterr().out.split())
    assert f"to decide {ROWS[row].check}" in alone
    assert main([*command, *options(ROWS[row].causes[cause].files(tmp_path)), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["incidents"][-1]["causes"][0]["cause"] == cause
