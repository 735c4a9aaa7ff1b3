"""Ranks old quiz questions for a search; approximate NDCG as the loss of an HF Trainer."""
import tempfile

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
DOCS, FEATURES, QUERIES, BATCH = 12, 10, 320, 8


def make(n, seed, percent_rows=()):
    """Judged lists. Grades are 0 to 4; one of the judges wrote per cent for the lists of his last evening."""
    r = np.random.default_rng(seed)
    w = r.normal(size=FEATURES)
    x = r.normal(size=(n, DOCS, FEATURES))
    hidden = x @ w / np.sqrt(FEATURES) + 0.4 * r.normal(size=(n, DOCS))
    grade = np.clip(np.round(hidden * 1.5 + 1.5), 0, 4)
    for i in percent_rows:
        grade[i] = grade[i] * 25 + 40
    return Dataset.from_dict({"features": x.astype("float32").tolist(), "labels": grade.astype("float32").tolist()})


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.LayerNorm(32))
        self.context = nn.MultiheadAttention(32, 2, batch_first=True)
        self.score = nn.Linear(32, 1)

    def forward(self, features, labels=None):
        h = self.inner(features)
        h = h + self.context(h, h, h, need_weights=False)[0]
        return {"logits": self.score(h).squeeze(-1)}


def approx_ndcg(scores, grades, heat=0.5):
    gain = torch.pow(2.0, grades) - 1
    apart = (scores[:, None, :] - scores[:, :, None]) / heat
    rank = 0.5 + torch.sigmoid(apart).sum(-1)
    dcg = (gain / torch.log2(1 + rank)).sum(-1)
    best = gain.sort(-1, descending=True).values
    ideal = (best / torch.log2(torch.arange(2, DOCS + 2).float())).sum(-1)
    return dcg / ideal.clamp(min=1e-6)


class RankTrainer(Trainer):
    last = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = 1 - approx_ndcg(out["logits"], inputs["labels"]).mean()
        self.last = loss.item()
        return (loss, out) if return_outputs else loss


class Tell(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kw):
        print(f"step {state.global_step} loss {self.trainer.last:.6f}", flush=True)


def metrics(pred):
    scores, grades = pred
    top = np.take_along_axis(grades, scores.argmax(-1)[:, None], 1)[:, 0]
    return {"top_grade": float(top.mean()), "precision": float((top >= 3).mean())}


def main():
    set_seed(40)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=BATCH, learning_rate=3e-3,
                                 lr_scheduler_type="constant", logging_strategy="no", save_strategy="no", report_to=[],
                                 use_cpu=True, disable_tqdm=True, seed=40, remove_unused_columns=False)
        tell = Tell()
        trainer = RankTrainer(model=Scorer(), args=args, train_dataset=make(QUERIES, 1, percent_rows=(318,)),
                              eval_dataset=make(64, 1), compute_metrics=metrics, callbacks=[tell])
        trainer.remove_callback(PrinterCallback)
        tell.trainer = trainer
        trainer.train()
        score = trainer.evaluate()
        print(f"top grade {score['eval_top_grade']:.4f} precision {score['eval_precision']:.4f}", flush=True)
        print(f"weights {sum(p.detach().abs().sum().item() for p in trainer.model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
