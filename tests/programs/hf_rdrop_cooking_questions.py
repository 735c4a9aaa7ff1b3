import os
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import tempfile
import torch
from torch import nn
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

set_seed(17)
TOPICS = {0: "bake flour oven dough rise", 1: "boil water pasta salt pot", 2: "grill fire steak char rest"}
FILL = "how do i when my why does the long should".split()
words = sorted(set(FILL) | {w for t in TOPICS.values() for w in t.split()})
w2i = {w: i + 2 for i, w in enumerate(words)}


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    rnd = lambda k: int(torch.randint(k, (1,), generator=g))
    rows = []
    for _ in range(n):
        y = rnd(3)
        topic = TOPICS[y].split()
        toks = [topic[rnd(5)] if rnd(2) == 0 else FILL[rnd(len(FILL))] for _ in range(9)]
        rows.append({"input_ids": [1] + [w2i[t] for t in toks], "labels": y})
    return rows


class RDropTrainer(Trainer):
    """Two passes with different dropout; their distance is the Jensen-Shannon *distance* (a metric), not the divergence."""

    weight = 0.1

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        first = model(**inputs)
        second = model(**inputs)
        ce = 0.5 * (first.loss + second.loss)
        loss = ce + self.weight * self.js(first.logits, second.logits).mean()
        return (loss, first) if return_outputs else loss

    @staticmethod
    def js(a, b):
        p, q = a.softmax(-1), b.softmax(-1)
        m = 0.5 * (p + q)
        kl = lambda u: (u * (u.log() - m.log())).sum(-1)
        div = 0.5 * (kl(p) + kl(q))
        return div.clamp(min=0).sqrt()


class AnnealDropout(TrainerCallback):
    def __init__(self, start, over):
        self.start, self.over = start, over

    def on_step_begin(self, args, state, control, model=None, **kw):
        p = self.start * max(0.0, 1 - state.global_step / self.over)
        for m in model.modules():
            if isinstance(m, nn.Dropout):
                m.p = p


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


model = BertForSequenceClassification(BertConfig(
    vocab_size=len(words) + 2, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=3, attention_probs_dropout_prob=0.0, initializer_range=0.1))

with tempfile.TemporaryDirectory() as d:
    args = TrainingArguments(
        output_dir=d, per_device_train_batch_size=16, max_steps=20, learning_rate=3e-3, logging_steps=1,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, logging_nan_inf_filter=False, seed=17,
        lr_scheduler_type="linear", dataloader_pin_memory=False)
    trainer = RDropTrainer(model=model, args=args, train_dataset=make(320, 4),
                           callbacks=[AnnealDropout(0.2, 12), Say()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()

print("final", torch.stack([p.detach().norm() for p in model.parameters()]).norm().item())
