"""The five founding incidents: what their users pasted names the cause among the first three, and first with the files.

The logs are written for this test, in the formats of the programs and releases of then, from what the threads tell:
01-ai/Yi#285, shibing624/MedicalGPT#296, ludwig-ai/ludwig#3950, unslothai/unsloth#911, OpenBMB/MiniCPM-V#549. Those
under `tests/data/logs` were printed by the runs of `examples/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.finding import Diagnosis

ROOT = Path(__file__).parents[3]
REAL, EXAMPLES = ROOT / "tests" / "data" / "logs", ROOT / "examples"


def _skip(second: int, tried: int, what: str) -> str:
    return (
        f"[2024-01-09 15:02:{second:02d},417] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        f"Skipping step. Attempted loss scale: {tried}, {what}\n"
    )


LADDER = _skip(11, 2**16, "but hysteresis is 2. Reducing hysteresis to 1") + "".join(
    _skip(28 - power, 2**power, f"reducing to {2 ** (power - 1)}") for power in range(16, 0, -1)
)
YI = f"""\
***** Running training *****
Beginning of Epoch 1/4, Total Micro Batches 1250
{LADDER}Traceback (most recent call last):
  File "/workspace/Yi/finetune/sft/main.py", line 420, in <module>
    main()
  File "/workspace/Yi/finetune/sft/main.py", line 395, in main
    model.step()
  File "/opt/conda/lib/python3.10/site-packages/deepspeed/runtime/engine.py", line 2087, in step
    self._take_model_step(lr_kwargs)
  File "/opt/conda/lib/python3.10/site-packages/deepspeed/runtime/fp16/loss_scaler.py", line 175, in update_scale
    raise Exception(
Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
"""


def _row(loss: str, rate: str, epoch: str, norm: str | None = None) -> str:
    told = "" if norm is None else f"'grad_norm': {norm}, "  # transformers print it from 4.38 on
    return f"{{'loss': {loss}, {told}'learning_rate': {rate}, 'epoch': {epoch}}}\n"


MEDICALGPT = _row("1.8563", "1.4e-08", "0.0") + "".join(
    _row("0.0", f"{2e-06 * step / 140:.2e}", f"{step / 700:.2f}") for step in range(20, 120, 10)
)
MEDICALGPT_BANNER = (
    "[2024-01-03 10:11:52,603] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.12.5, "
    "git-hash=unknown, git-branch=unknown\n"
    "[2024-01-03 10:12:20,117] [INFO] [logging.py:96:log_dist] [Rank 0] Creating torch.bfloat16 ZeRO stage 2 "
    "optimizer\n"
)
MEDICALGPT_NORMS = _row("1.8563", "1.4e-08", "0.0", "1.0") + "".join(
    _row("0.0", f"{2e-06 * step / 140:.2e}", f"{step / 700:.2f}", "1.0") for step in range(20, 120, 10)
)
LUDWIG = """\
Training:  33%|###3      | 428/1287 [31:58<1:04:09,  4.48s/it, loss=nan]
Training:  33%|###3      | 429/1287 [32:02<1:04:05,  4.48s/it, loss=nan]
Found NaN or inf values in parameter 'model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight' \
of module 'LLM'
NaN or inf tensors found in the model. Stopping training.
Could not load best checkpoint state from /tmp/tmpx1b7k_2e/model/training_checkpoints/best.ckpt. Best checkpoint may \
not exist.
"""
UNSLOTH = r"""==((====))==  Unsloth 2024.8: Fast Llama patching. Transformers = 4.43.4.
   \\   /|    GPU: Tesla T4. Max memory: 14.748 GB. Platform = Linux.
O^O/ \_/ \    Pytorch: 2.3.1+cu121. CUDA = 7.5. CUDA Toolkit = 12.1.
\        /    Bfloat16 = FALSE. FA [Xformers = 0.0.27. FA2 = False]
 "-____-"     Free Apache license: http://github.com/unslothai/unsloth
""" + "".join(
    _row(f"{1.9 - 0.01 * (step % 4):.4f}", f"{2e-4 * min(step, 5) / 5:.1e}", f"{step / 60:.2f}", "nan")
    for step in range(1, 13)
)
MULTINOMIAL = """\
Traceback (most recent call last):
  File "/home/user/MiniCPM-V/chat.py", line 18, in <module>
    answer = model.chat(image=image, msgs=msgs, tokenizer=tokenizer)
  File "/root/.cache/huggingface/modules/transformers_modules/output_lora/modeling_minicpmv.py", line 380, in chat
    res = self.generate(
  File "/opt/conda/lib/python3.10/site-packages/transformers/generation/utils.py", line 2651, in _sample
    next_tokens = torch.multinomial(probs, num_samples=1).squeeze(1)
RuntimeError: probability tensor contains either `inf`, `nan` or element < 0
"""

FILES: dict[str, dict[str, Any]] = {
    "yi": {"configs": ["run_sft_Yi.sh"], "model": "model", "data": "train.jsonl", "gpu": "V100"},
    "medicalgpt": {"configs": ["run_sft.sh"], "requirements": "requirements.txt"},
    "ludwig": {"configs": ["model.yaml"], "model": "model", "data": "train.csv", "gpu": "V100"},
    "unsloth": {"configs": ["sft_config.yaml"], "model": "model", "data": "train.jsonl", "gpu": "T4"},
    "omnilmm": {"configs": ["finetune_lora.sh"], "model": "model", "gpu": "V100"},
}
CAUSES = {
    "yi": "untrained-token-embeddings",
    "medicalgpt": "comm-overlap-race",
    "ludwig": "unmasked-padding",
    "unsloth": "fp16-activation-overflow",
    "omnilmm": "fp16-activation-overflow",
}
PASTED = [
    ("yi", YI), ("yi", LADDER), ("yi", "yi-zero2.log"),
    ("medicalgpt", MEDICALGPT), ("medicalgpt", MEDICALGPT_BANNER + MEDICALGPT), ("medicalgpt", MEDICALGPT_NORMS),
    ("medicalgpt", "medicalgpt-bf16-zero2.log"),
    ("ludwig", LUDWIG), ("ludwig", "ludwig-batch-4.log"),
    ("unsloth", UNSLOTH), ("unsloth", "unsloth-unpacked.log"),
    ("omnilmm", MULTINOMIAL), ("omnilmm", MULTINOMIAL.splitlines()[-1]), ("omnilmm", "omnilmm-tuned.log"),
]  # fmt: skip


def told(tmp_path: Path, pasted: str, **inputs: Any) -> Diagnosis:
    if "\n" not in pasted and pasted.endswith(".log"):
        return diagnose_logs(REAL / pasted, **inputs)
    (tmp_path / "pasted.log").write_text(pasted)
    return diagnose_logs(tmp_path / "pasted.log", **inputs)


def first_three(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.incidents[-1].causes]


def of(system: str) -> dict[str, Any]:
    """The files that lie in the example, as arguments of `diagnose`."""
    if "data" in FILES[system]:
        pytest.importorskip("tokenizers")
    folder = EXAMPLES / system
    return {
        key: [folder / one for one in value] if key == "configs" else value if key == "gpu" else folder / value
        for key, value in FILES[system].items()
    }


@pytest.mark.parametrize(("system", "pasted"), PASTED)
def test_the_founding_cause_is_among_the_first_three_without_any_file(system: str, pasted: str, tmp_path: Path) -> None:
    found = told(tmp_path, pasted)
    assert CAUSES[system] in first_three(found)
    assert found.incidents[0].next_check


@pytest.mark.parametrize(("system", "pasted"), PASTED)
def test_the_founding_cause_is_first_with_the_files(system: str, pasted: str, tmp_path: Path) -> None:
    assert first_three(told(tmp_path, pasted, **of(system)))[0] == CAUSES[system]
