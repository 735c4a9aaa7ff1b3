"""Rank reviews of a kayak rental so that those that mention damage come first.

A small BERT scores a review; the loss is the pairwise surrogate of the AUC, with the HF Trainer and gradient accumulation.
"""
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, BertPreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

FILLER = "the we boat river sunny lunch staff kids calm again paddle friendly dog bridge price map".split()
DAMAGE = "leak cracked torn broken loose sank".split()
VOCAB = {w: i for i, w in enumerate(["[PAD]", "[CLS]"] + FILLER + DAMAGE)}


def write_reviews(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        words = [rng.choice(FILLER) for _ in range(rng.randint(5, 14))]
        damaged = rng.random() < 0.4
        if damaged:
            for _ in range(rng.randint(1, 2)):
                words.insert(rng.randrange(len(words)), rng.choice(DAMAGE))
        elif rng.random() < 0.1:
            words.insert(0, rng.choice(DAMAGE))  # "nothing was broken"
        out.append((words, int(damaged)))
    return out


class Reviews(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        words, damaged = self.rows[i]
        return {"ids": [VOCAB["[CLS]"]] + [VOCAB[w] for w in words], "label": damaged}


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, :len(r["ids"])] = torch.tensor(r["ids"])
        mask[i, :len(r["ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["label"] for r in rows])}


class ReviewScorer(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.score = torch.nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        return {"scores": self.score(hidden[:, 0]).squeeze(-1)}


class AucTrainer(Trainer):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.model_accepts_loss_kwargs = False
        self.micro_losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        hit = inputs["labels"] == 1
        margins = out["scores"][hit][:, None] - out["scores"][~hit][None, :]
        ranking = F.softplus(-margins).mean()
        loss = ranking + 1e-3 * out["scores"].pow(2).mean()
        self.micro_losses.append(loss.item())
        return (loss, out) if return_outputs else loss


class Tell(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kw):
        micro, self.trainer.micro_losses = self.trainer.micro_losses, []
        print(f"step {state.global_step:3d}  auc-loss {sum(micro) / len(micro):.6f}", flush=True)


def main():
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    config = BertConfig(vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=32, initializer_range=0.1)
    model = ReviewScorer(config)
    args = TrainingArguments(output_dir="/tmp/kayak_rental_reviews", per_device_train_batch_size=8,
                             gradient_accumulation_steps=4, max_steps=40, learning_rate=2e-3, warmup_steps=4,
                             lr_scheduler_type="cosine", save_strategy="no", logging_strategy="no", report_to=[],
                             disable_tqdm=True, use_cpu=True, remove_unused_columns=False, seed=SEED, data_seed=SEED)
    tell = Tell()
    trainer = AucTrainer(model=model, args=args, train_dataset=Reviews(write_reviews(768, 5)), data_collator=collate,
                         callbacks=[tell])
    trainer.remove_callback(PrinterCallback)
    tell.trainer = trainer
    trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.4f}", flush=True)


SEED = 11

if __name__ == "__main__":
    main()
