"""LISA: layerwise importance sampling. Embedding and head are always trained, of the decoder layers only one at a
time, drawn anew every four steps. Tiny Llama, causal LM on lines of a seed catalogue."""
import os
import random
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(9)
rnd = random.Random(9)
PLANTS = ["leek", "kale", "beet", "sorrel", "chard", "fennel"]
SOW = {"leek": "march", "kale": "may", "beet": "april", "sorrel": "june", "chard": "july", "fennel": "august"}
SOIL = ["loam", "clay", "sand", "chalk"]
VOCAB = {w: i for i, w in enumerate(["<pad>", "<eos>", "sow", "in", "on", ",", "packets", "of"] + PLANTS
                                    + sorted(SOW.values()) + SOIL + [str(i) for i in range(10)])}


class Catalogue(torch.utils.data.Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            p = rnd.choice(PLANTS)
            words = [str(rnd.randint(1, 9)), "packets", "of", p, ",", "sow", "in", SOW[p]]
            if rnd.random() < 0.5:
                words += ["on", rnd.choice(SOIL)]
            self.rows.append([VOCAB[w] for w in words] + [VOCAB["<eos>"]])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate(items):
    width = max(len(i["input_ids"]) for i in items)
    ids = torch.zeros(len(items), width, dtype=torch.long)
    for r, item in enumerate(items):
        ids[r, : len(item["input_ids"])] = torch.tensor(item["input_ids"])
    mask = (torch.arange(width) < torch.tensor([[len(i["input_ids"])] for i in items])).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class LISA(TrainerCallback):
    def __init__(self, model, every=4):
        self.layers, self.every, self.rnd = model.model.layers, every, random.Random(0)

    def on_step_begin(self, args, state, control, **kw):
        if state.global_step % self.every == 0:
            self.active = self.rnd.randrange(len(self.layers))
            for i, layer in enumerate(self.layers):
                layer.requires_grad_(i == self.active)


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


config = LlamaConfig(vocab_size=len(VOCAB), hidden_size=32, intermediate_size=64, num_hidden_layers=4,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                     pad_token_id=0, eos_token_id=1, bos_token_id=1, tie_word_embeddings=True)
model = LlamaForCausalLM(config)
args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=32, per_device_train_batch_size=16, learning_rate=8e-3,
                         lr_scheduler_type="cosine", warmup_steps=3, logging_steps=1, save_strategy="no",
                         report_to=[], disable_tqdm=True, use_cpu=True, seed=9, weight_decay=0.0)
trainer = Trainer(model=model, args=args, train_dataset=Catalogue(512), data_collator=collate,
                  callbacks=[LISA(model), Printer()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print(f"sum of weights {sum(p.detach().double().abs().sum().item() for p in model.parameters()):.4f}")
