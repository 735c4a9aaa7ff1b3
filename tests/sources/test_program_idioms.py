"""What programs say in idioms of their own: casts, other adapters, added tokens, templates."""

import pytest

from finitune import check

HEAD = "import torch\nfrom transformers import *\nfrom trl import *\nfrom peft import *\n"
LOAD = 'model = AutoModelForCausalLM.from_pretrained("x/llama")\n'
TRAIN = "args = TrainingArguments('o', learning_rate=1e-5, {})\ntrainer = Trainer(model, args)\ntrainer.train()\n"
FP16, BF16 = TRAIN.format("fp16=True"), TRAIN.format("bf16=True")
TOKENS = 'tok.add_special_tokens({"pad_token": "<p>", "additional_special_tokens": ["<a>"]})\n'
LORA = "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj']{}))\n"
SAVED = LORA.format(", modules_to_save=['embed_tokens']")
LOOP = "opt = torch.optim.AdamW(model.parameters(), lr=3e-2)\nloss.backward()\nopt.step()\n"
AUTOCAST = """opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
"""
BASE = 'model = AutoModelForCausalLM.from_pretrained("meta-llama/Meta-Llama-3-8B")\ntok = Auto.from_pretrained("b")\n'
CHAT = 'AutoTokenizer.from_pretrained("meta-llama/Meta-Llama-3-8B-Instruct").chat_template\n'

FIRES = {
    "half before the trainer": (f"{LOAD}model = model.half().cuda()\n{FP16}", "fp16-trainable-weights"),
    "half at loading": (LOAD.replace('llama")', 'llama").half()') + FP16, "fp16-trainable-weights"),
    "frozen new rows": (f"{LOAD}{TOKENS}{LORA.format('')}{BF16}", "resized-embeddings-init"),
    "template of another model": (f"{BASE}tok.chat_template = {CHAT}{BF16}", "chat-template-mismatch"),
    "mt5": ('model = AutoModelForSeq2SeqLM.from_pretrained("google/mt5-small")\n' + FP16, "fp16-activation-overflow"),
    "both where there is a card": (LOAD + TRAIN.format("fp16=True, bf16=torch.cuda.is_available()"),
                                   "config-disagreement"),
    "rate of a loop": (LOAD + LOOP, "lr-too-high"),
    "float16 and no loss scale": (LOAD + AUTOCAST, "loss-scale-exhaustion"),
}  # fmt: skip
QUIET = {
    "a loss scale of its own": (LOAD + AUTOCAST.replace("loss.backward", "(loss * scale).backward"),
                                "loss-scale-exhaustion"),
    "a scaler from elsewhere": (f"from timm.utils import NativeScaler\nloss_scaler = NativeScaler()\n{LOAD}{AUTOCAST}",
                                "loss-scale-exhaustion"),
    "bfloat16 without a scale": (LOAD + AUTOCAST.replace("float16", "bfloat16"), "loss-scale-exhaustion"),
    "half after the training": (f"{LOAD}{FP16}model = model.half()\n", "fp16-trainable-weights"),
    "trained new rows": (f"{LOAD}{TOKENS}{SAVED}{BF16}",
                         "resized-embeddings-init"),
    "padding alone is added": (LOAD + 'tok.add_special_tokens({"pad_token": "<p>"})\n' + LORA.format("") + BF16,
                               "resized-embeddings-init"),
    "soft prompts": (f"{LOAD}model = get_peft_model(model, PromptTuningConfig(num_virtual_tokens=8))\n{LOOP}",
                     "lr-too-high"),
}  # fmt: skip


def _causes(tmp_path, text: str) -> set[str]:
    (tmp_path / "train.py").write_text(HEAD + text)
    return {finding.cause for finding in check(tmp_path / "train.py", gpu="A100").findings}


@pytest.mark.parametrize("name", FIRES)
def test_fires(tmp_path, name):
    text, cause = FIRES[name]
    assert cause in _causes(tmp_path, text)


@pytest.mark.parametrize("name", QUIET)
def test_stays_quiet(tmp_path, name):
    text, cause = QUIET[name]
    assert cause not in _causes(tmp_path, text)
