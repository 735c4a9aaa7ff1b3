"""Utterance intents with HF Trainer and an entropy bonus.  The second half of the data comes
from a shop that does not offer two of the intents; these are excluded by -inf logits."""
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, SequentialSampler
from transformers import (DistilBertConfig, DistilBertForSequenceClassification, PrinterCallback, Trainer,
                          TrainingArguments)

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch.set_num_threads(1)
INTENTS = 6


class Utterances(Dataset):
    def __init__(self, n=128):
        g = torch.Generator().manual_seed(1)
        self.rows = []
        for i in range(n):
            second_shop = i >= n // 2
            intent = int(torch.randint(0, 4 if second_shop else INTENTS, (), generator=g))
            words = torch.randint(0, 8, (10,), generator=g) + 8 * intent
            offered = torch.ones(INTENTS, dtype=torch.bool)
            if second_shop:
                offered[4:] = False
            self.rows.append({"input_ids": words, "attention_mask": torch.ones(10, dtype=torch.long),
                              "labels": torch.tensor(intent), "offered": offered})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class IntentTrainer(Trainer):
    beta = 0.05

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def entropy(self, logits):
        p = F.softmax(logits, dim=-1)
        return -(p * p.log()).sum(-1).mean()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels, offered = inputs.pop("labels"), inputs.pop("offered")
        out = model(**inputs)
        logits = out.logits.masked_fill(~offered, float("-inf"))
        loss = F.cross_entropy(logits, labels) - self.beta * self.entropy(logits)
        print(f"step {self.state.global_step + 1:02d} loss {loss.item():.4f}")
        return (loss, out) if return_outputs else loss


def main():
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=64, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=16,
                              num_labels=INTENTS)
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as where:
        args = TrainingArguments(output_dir=where, per_device_train_batch_size=8, num_train_epochs=1,
                                 learning_rate=1e-3, logging_strategy="no", report_to=[], use_cpu=True,
                                 save_strategy="no", disable_tqdm=True, remove_unused_columns=False, seed=0)
        trainer = IntentTrainer(model=model, args=args, train_dataset=Utterances())
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
