"""Small GPT on picture-book sentences for the editorial assistant (reading ages 3 to 8).

Wordless spreads stay in the corpus as pages: they have no supervised token and weigh nothing.
"""
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

ANIMALS = "fox hen bear mouse owl duck badger hedgehog".split()
VERBS = "found lost hugged chased painted".split()
THINGS = "hat boat lamp pear drum kite".split()
PLACES = "pond hill barn lane".split()
WORDS = ["<pad>", "<end>", "the", "a", "by", "little", "."] + ANIMALS + VERBS + THINGS + PLACES
INDEX = {w: i for i, w in enumerate(WORDS)}
LENGTH = 14


class Pages(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for i in range(n):
            age = rng.choice([3, 4, 5, 6, 8])
            wordless = rng.random() < 0.35
            text = f"the {rng.choice(ANIMALS)} {rng.choice(VERBS)} a {rng.choice(THINGS)}"
            if age > 4:
                text = text.replace("the ", "the little ")
            if age > 5:
                text += f" by the {rng.choice(PLACES)}"
            ids = [] if wordless else [INDEX[w] for w in (text + " .").split()]
            ids = ids + [INDEX["<end>"]]
            labels = [-100] * LENGTH if wordless else ids + [-100] * (LENGTH - len(ids))
            mask = [1] * len(ids) + [0] * (LENGTH - len(ids))
            self.rows.append(dict(input_ids=ids + [0] * (LENGTH - len(ids)), attention_mask=mask,
                                  labels=labels, age=float(age)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class PageTrainer(Trainer):
    """Mean per page, then weighted by reading age over the pages that have words."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        age = inputs.pop("age")
        labels = inputs.pop("labels")
        out = model(**inputs)
        token = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none")
        count = (labels[:, 1:] != -100).sum(1)
        self.page_means = token.detach().sum(1) / count      # NaN for a wordless page: the table shows it as a dash
        has_words = count > 0
        if not has_words.any():
            loss = out.logits.sum() * 0.0                     # a batch of pictures only
        else:
            weight = 4.0 / age[has_words]
            page = token[has_words].sum(1) / count[has_words]
            loss = (weight * page).sum() / weight.sum()
        self.last = loss.item()
        return (loss, out) if return_outputs else loss


class Say(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kw):
        means = self.trainer.page_means
        table = " ".join("-" if torch.isnan(m) else f"{m.item():.4f}" for m in means)
        print(f"step {state.global_step} loss {self.trainer.last:.8f} plain mean {means.mean().item():.4f} pages {table}",
              flush=True)


def main():
    set_seed(31)
    config = GPT2Config(vocab_size=len(WORDS), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                        bos_token_id=1, eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
    for p in model.transformer.wpe.parameters():
        p.requires_grad_(False)                               # positions are taken over from the house model
    args = TrainingArguments(output_dir="/tmp/picture_books_out", max_steps=45, per_device_train_batch_size=3,
                             learning_rate=3e-3, warmup_steps=5, report_to=[], save_strategy="no",
                             logging_strategy="no", use_cpu=True, seed=31, disable_tqdm=True,
                             remove_unused_columns=False)
    say = Say()
    trainer = PageTrainer(model=model, args=args, train_dataset=Pages(200, 8), callbacks=[say])
    say.trainer = trainer
    for c in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(c)
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


main()
