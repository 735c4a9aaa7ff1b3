"""The commonest traps of a set-up, each in the words of the files that people have: cause, line, and what to do."""

import pytest

from finitune import check
from finitune.reports.sentences import do

HALVES = "learning_rate: 1.0e-5\nfp16: true\nbf16: true\n"
DEEPSPEED = '{\n "fp16": {"enabled": true},\n "bf16": {"enabled": true},\n "zero_optimization": {"stage": 2}\n}\n'
OFFLOAD = '{\n "bf16": {"enabled": true},\n "zero_optimization": {"stage": 2,\n  "offload_param": {"device": "cpu"}}}\n'
FLASH = "model_name_or_path: x/llama\nlearning_rate: 1.0e-5\nattn_implementation: flash_attention_2\nfp16: true\n"
AXOLOTL = "base_model: x/mistral\nlearning_rate: 0.0002\nflash_attention: true\nbf16: auto\n"
GEMMA = "model_name_or_path: google/gemma-2-9b\nlearning_rate: 1.0e-5\n{}: true\n"
RECIPE = (
    "model:\n  _component_: torchtune.models.llama3.llama3_8b\n"
    "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 0.5\n"
)
FOUR_BIT = "learning_rate: 1.0e-4\nuse_peft: true\nload_in_4bit: true\nbnb_4bit_compute_dtype: bfloat16\nfp16: true\n"
TYPO = "model_name_or_path: x/llama\nlearning_rat: 1.0e-5\nnum_train_epochs: 1\nfp16: true\n"

TRAPS = {  # name: file, text, card, cause, line, what to do
    "both halves": ("a.yaml", HALVES, "V100", "config-disagreement", 2, "set fp16 = true, bf16 = false"),
    "both halves, new card": ("a.yaml", HALVES, "A100", "config-disagreement", 2, "set fp16 = false, bf16 = true"),
    "both sections": ("ds.json", DEEPSPEED, "A100", "config-disagreement", 2,
                      "set fp16.enabled = false, bf16.enabled = true"),
    "offload": ("ds.json", OFFLOAD, "A100", "zero-config-error", 4,
                "set zero_optimization.stage to 3, or remove offload_param"),
    "flash": ("a.yaml", FLASH, "V100", "flash-attention-bug", 3, "set attn_implementation = sdpa"),
    "flash of axolotl": ("a.yml", AXOLOTL, "T4", "flash-attention-bug", 3,
                         "set sdp_attention = true, flash_attention = false"),
    "gemma in fp16": ("a.yaml", GEMMA.format("fp16"), "V100", "fp16-activation-overflow", 3,
                      "set bf16 = false, fp16 = false"),
    "gemma in bf16": ("a.yaml", GEMMA.format("bf16"), "V100", "bf16-emulated-hardware", 3,
                      "set bf16 = false, fp16 = false"),
    "gemma in fp16, new card": ("a.yaml", GEMMA.format("fp16"), "A100", "fp16-activation-overflow", 3,
                                "set fp16 = false, bf16 = true"),
    "4-bit in bf16": ("q.yaml", FOUR_BIT, "V100", "quant-compute-dtype", 3, "set bnb_4bit_compute_dtype = float32"),
    "rate of a recipe": ("r.yaml", RECIPE, "A100", "lr-too-high", 5, "set optimizer.lr = 2e-5 (it is 0.5)"),
    "typing error": ("a.yaml", TYPO, "A100", "misspelt-setting", 2, "rename learning_rat to learning_rate"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_fires_with_its_line_and_with_something_to_do(tmp_path, name):
    file, text, card, cause, line, remedy = TRAPS[name]
    (tmp_path / file).write_text(text)
    result = check(tmp_path / file, gpu=card)
    (finding,) = [one for one in result.findings if one.cause == cause]
    assert (finding.severity in ("error", "warning"), finding.where.line, do(finding.remedy)) == (True, line, remedy)


def test_stays_quiet_on_a_card_that_can_do_it(tmp_path):
    (tmp_path / "a.yaml").write_text(FLASH.replace("fp16", "bf16"))
    assert not check(tmp_path / "a.yaml", gpu="A100").findings


SFT = "from trl import SFTConfig, SFTTrainer\n{}SFTTrainer('some/model', args=SFTConfig('out', {})).train()\n"


@pytest.mark.parametrize(
    ("before", "given", "warned"),
    [
        ("", "learning_rate=1e-5", True),
        ("", "learning_rate=1e-5, fp16=False", True),
        ("", "learning_rate=1e-5, fp16=True", False),
        ("", "learning_rate=1e-5, bf16=False", False),
        ("import os\n", "learning_rate=1e-5, bf16=os.environ['B'] == '1'", False),
        ("import os\n", "learning_rate=1e-5, **dict(os.environ)", False),
    ],
)
def test_trl_trains_in_bfloat16_where_nothing_is_said(before, given, warned, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SFT.format(before, given))
    found = [finding.cause for finding in check(file, gpu="V100").findings]
    assert ("bf16-emulated-hardware" in found) == warned


@pytest.mark.parametrize(("typed", "warned"), [("", True), (" --fp16", False)])
def test_so_does_its_command(typed, warned, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(f"trl sft --model_name_or_path some/model --dataset_name d --output_dir o{typed}\n")
    found = [finding.cause for finding in check(file, gpu="V100").findings]
    assert ("bf16-emulated-hardware" in found) == warned
