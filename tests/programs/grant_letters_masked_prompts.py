import random
import sys
import tempfile

sys.modules["deepspeed"] = sys.modules["bitsandbytes"] = None    # not needed here and slow to import

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

MAX_LEN = 36
ALPHABET = " abcdefghijklmnopqrstuvwxyz:.?>"
stoi = {ch: i + 1 for i, ch in enumerate(ALPHABET)}
PAD = 0

SUBJECTS = ["new roof", "piano", "library van", "choir robes", "garden", "summer camp"]
LONG = "the committee of the old harbour trust asks about "
REPLIES = ["granted.", "refused.", "send plans."]


def build_letters(n):
    rng = random.Random(11)
    letters = []
    for i in range(n):
        subject = rng.choice(SUBJECTS)
        question = subject + "?"
        if i % 9 in (4, 5):
            question = LONG + question
        letters.append((question + ">", REPLIES[len(subject) % 3]))
    return letters


class Letters(torch.utils.data.Dataset):
    def __init__(self, letters):
        self.rows = []
        for prompt, reply in letters:
            p = [stoi[c] for c in prompt]
            r = [stoi[c] for c in reply]
            ids = (p + r)[:MAX_LEN]
            labels = ([-100] * len(p) + r)[:MAX_LEN]
            self.rows.append({"ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), -100)
    seen = torch.zeros(len(rows), width, dtype=torch.long)
    for k, r in enumerate(rows):
        n = len(r["ids"])
        ids[k, :n] = torch.tensor(r["ids"])
        labels[k, :n] = torch.tensor(r["labels"])
        seen[k, :n] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": seen}


class InOrder(Trainer):
    micro = []

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        loss = out[0] if return_outputs else out
        self.micro.append((loss.item(), int((inputs["labels"] != -100).sum())))
        return out


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            parts = " ".join(f"{value:.4f}/{count}" for value, count in InOrder.micro)
            InOrder.micro.clear()
            print(f"step {state.global_step:2d}  loss {logs['loss']:.4f}  micro {parts}")


set_seed(5)
letters = Letters(build_letters(180))
net = GPT2LMHeadModel(GPT2Config(vocab_size=len(ALPHABET) + 1, n_positions=MAX_LEN, n_embd=32, n_layer=2, n_head=2,
                                 bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2, gradient_accumulation_steps=3,
                         num_train_epochs=1, learning_rate=5e-3, lr_scheduler_type="cosine", logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                         remove_unused_columns=False)
trainer = InOrder(model=net, args=args, train_dataset=letters, data_collator=collate, callbacks=[Say()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print("sum of squared weights", f"{sum((p.detach() ** 2).sum() for p in net.parameters()).item():.4f}")
