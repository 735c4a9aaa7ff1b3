import random
import sys
import tempfile
from dataclasses import dataclass

for unused in ("deepspeed", "bitsandbytes"):
    sys.modules[unused] = None

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

BLOCK = 24
WORDS = "arriving monday stop send money train delayed letter follows love regards harbour storm father well ill".split()
PAD, END = 0, 1
code = {w: i + 2 for i, w in enumerate(WORDS)}


def telegram(rng):
    w = rng.randrange(len(WORDS))
    out = []
    for _ in range(rng.randint(4, 9)):
        out.append(code[WORDS[w]])
        w = (w * 5 + rng.choice([1, 1, 1, 3])) % len(WORDS)
    return out + [END]


def pack(box):
    """Telegrams of one archive box, head to tail, cut into blocks; each token knows its telegram."""
    tokens, owner = [], []
    for number, message in enumerate(box):
        tokens += message
        owner += [number] * len(message)
    while len(tokens) % BLOCK:
        tokens.append(PAD)
        owner.append(-1)
    return [(tokens[i:i + BLOCK], owner[i:i + BLOCK]) for i in range(0, len(tokens), BLOCK)]


def archive():
    rng = random.Random(1912)
    rows = []
    for target in (49, 41):
        box, size = [], 0
        while size < target * BLOCK - 10:
            box.append(telegram(rng))
            size += len(box[-1])
        rows += pack(box)
    return rows


@dataclass
class BlockCollator:
    def __call__(self, rows):
        ids = torch.tensor([r[0] for r in rows])
        owner = torch.tensor([r[1] for r in rows])
        order = torch.arange(BLOCK)
        same = (owner[:, :, None] == owner[:, None, :]) & (owner[:, None, :] >= 0)
        visible = same & (order[:, None] >= order[None, :])
        bias = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
        labels = ids.masked_fill(owner < 0, -100)
        return dict(input_ids=ids, attention_mask=bias[:, None], labels=labels)


class Ordered(Trainer):
    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Lines(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            print("%3d  loss %8.5f  norm %8.5f" % (state.global_step, logs["loss"], logs["grad_norm"]))


transformers.set_seed(12)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS) + 2, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=BLOCK,
                                     pad_token_id=PAD, bos_token_id=None, eos_token_id=END,
                                     attn_implementation="eager"))
rows = archive()
print("blocks", len(rows))
args = TrainingArguments(output_dir=tempfile.mkdtemp(), num_train_epochs=1, per_device_train_batch_size=3,
                         learning_rate=4e-3, logging_steps=1, save_strategy="no", report_to="none",
                         disable_tqdm=True, use_cpu=True, remove_unused_columns=False)
trainer = Ordered(model=model, args=args, train_dataset=rows, data_collator=BlockCollator(), callbacks=[Lines])
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
with torch.no_grad():
    print("weights abs", sum(p.abs().sum() for p in model.parameters()).item())
