"""Emergency-room triage (five ordered levels) from short notes: DistilBERT with a cumulative-link head.

P(level <= k) = sigmoid(theta_k - score), with theta_0 = -inf and theta_5 = +inf, so that the five levels are
differences of neighbouring cumulative probabilities and the outermost ones need no special case.
"""
import math
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

COMPLAINTS = ["chest", "ankle", "fever", "cut", "headache", "fall", "rash", "breath"]
GRAVITY = [4.0, 1.0, 2.2, 1.2, 2.4, 2.6, 0.4, 4.2]


class Notes(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            k = int(torch.randint(0, 8, (1,), generator=gen))
            length = int(torch.randint(3, 7, (1,), generator=gen))
            ids = torch.randint(12, 90, (length,), generator=gen)
            ids[int(torch.randint(0, length, (1,), generator=gen))] = 2 + k
            level = GRAVITY[k] + 0.5 * torch.randn((), generator=gen).item()
            self.rows.append((ids, min(4, max(0, round(level)))))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (x, _) in enumerate(rows):
        ids[i, : len(x)] = x
        mask[i, : len(x)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([y for _, y in rows])}


class CumulativeLink(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([-1.5]))
        self.log_gaps = nn.Parameter(torch.zeros(levels - 2))

    def thresholds(self):
        inner = torch.cat([self.first, self.first + self.log_gaps.exp().cumsum(0)])
        return torch.cat([inner.new_tensor([-math.inf]), inner, inner.new_tensor([math.inf])])

    def forward(self, score, level):
        theta = self.thresholds()
        upper = torch.sigmoid(theta[level + 1] - score)
        lower = torch.sigmoid(theta[level] - score)
        return -(upper - lower + 1e-7).log().mean()


class TriageModel(nn.Module):
    def __init__(self):
        super().__init__()
        config = DistilBertConfig(vocab_size=96, dim=48, n_layers=2, n_heads=4, hidden_dim=96,
                                  max_position_embeddings=16, dropout=0.0, attention_dropout=0.0)
        self.encoder = DistilBertModel(config)
        self.score = nn.Linear(48, 1)
        self.link = CumulativeLink(5)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        score = self.score((h * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))[:, 0]
        return {"loss": self.link(score, labels), "logits": score}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


set_seed(20)
model = TriageModel()
args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=30,
                         learning_rate=4e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
                         use_cpu=True, seed=20, dataloader_pin_memory=False)
trainer = Trainer(model=model, args=args, train_dataset=Notes(400, 21), data_collator=collate, callbacks=[Say()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print("cut points", " ".join(f"{v:.2f}" for v in model.link.thresholds().tolist()))
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
