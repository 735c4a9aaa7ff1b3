"""Which binding does a repair note ask for?  HF Trainer, own loss.

The loss is a pay-off (negative cost in euros) so it is below zero when all is well.
The recall of a class that a window of steps never saw is NaN in the log; that is how
we know it was not seen.
"""
import os
import random
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")      # deepspeed is chatty otherwise
import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)
from transformers.trainer_callback import PrinterCallback

set_seed(1440)
KINDS = ["case", "coptic", "limp vellum", "perfect", "girdle"]       # nobody brings a girdle book
HINTS = {
    "case": "hinge cracked cloth boards square headband loose".split(),
    "coptic": "chain stitch exposed spine flat kettle linen".split(),
    "limp vellum": "vellum ties shrunk alum laced wrapper".split(),
    "perfect": "glue dry leaves falling paperback milled".split(),
}
VOCAB = ["[PAD]", "[CLS]", "the", "of", "with", "and", "old"] + sorted({w for v in HINTS.values() for w in v})
PAYOFF = torch.tensor([40.0, 120.0, 260.0, 8.0, 900.0])              # euros per job done right


class Notes(Dataset):
    def __init__(self, n, length=10):
        rng = random.Random(3)
        self.rows = []
        for _ in range(n):
            kind = rng.choices(range(4), weights=[5, 2, 1, 4])[0]
            words = rng.choices(HINTS[KINDS[kind]], k=rng.randint(3, 5)) + rng.choices(VOCAB[2:7], k=3)
            rng.shuffle(words)
            ids = [1] + [VOCAB.index(w) for w in words]
            pad = length - len(ids)
            self.rows.append(dict(input_ids=ids + [0] * pad, attention_mask=[1] * len(ids) + [0] * pad, labels=kind))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {k: torch.tensor(v) for k, v in self.rows[i].items()}


class PayoffTrainer(Trainer):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.hits = torch.zeros(len(KINDS))
        self.seen = torch.zeros(len(KINDS))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        prob = out.logits.softmax(-1)
        earned = PAYOFF[labels] * prob.gather(-1, labels[:, None]).squeeze(-1)
        hedge = torch.special.entr(prob).sum(-1)
        loss = -(earned + 2.0 * hedge).mean()
        with torch.no_grad():
            right = (out.logits.argmax(-1) == labels).float()
            self.hits.index_add_(0, labels, right)
            self.seen.index_add_(0, labels, torch.ones_like(right))
        return (loss, out) if return_outputs else loss

    def recall(self):
        r = self.hits / self.seen
        self.hits.zero_(), self.seen.zero_()
        return r


class Ledger(TrainerCallback):
    trainer = None

    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            recall = " ".join(f"{k.split()[0]}={v:.2f}" for k, v in zip(KINDS, self.trainer.recall().tolist()))
            print(f"job {state.global_step:3d} payoff loss {float(logs['loss']):.4f}  recall {recall}")


model = BertForSequenceClassification(BertConfig(
    vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, initializer_range=0.15, num_labels=len(KINDS)))
with tempfile.TemporaryDirectory() as where:
    args = TrainingArguments(output_dir=where, per_device_train_batch_size=8, max_steps=30, learning_rate=3e-3,
                             logging_steps=2, save_strategy="no", report_to="none", disable_tqdm=True,
                             use_cpu=True, max_grad_norm=5.0, seed=1440)
    ledger = Ledger()
    trainer = PayoffTrainer(model=model, args=args, train_dataset=Notes(320), callbacks=[ledger])
    ledger.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("bench", round(sum(p.sum().item() for p in model.parameters()), 4))
