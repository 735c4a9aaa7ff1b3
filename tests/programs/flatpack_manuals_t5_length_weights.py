"""Toy T5 that rewrites flat-pack assembly steps; longer targets in a batch count a little more."""
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, SequentialSampler
from transformers import (T5Config, T5ForConditionalGeneration, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, logging, set_seed)

logging.set_verbosity_error()
PAD, EOS = 0, 1
WORDS = "panel screw dowel hinge shelf cam bolt key rail back left right insert turn tighten place flip glue".split()
VOCAB = {w: i + 2 for i, w in enumerate(WORDS)}


class Manuals(Dataset):
    """Rows are bucketed by (roughly) their length, so that little is padded; the buckets come in random order."""

    def __init__(self, n, batch, seed):
        rnd = random.Random(seed)
        rows = []
        for _ in range(n):
            k = rnd.randint(3, 12)
            src = [rnd.choice(list(VOCAB.values())) for _ in range(k)]
            rows.append((src + [EOS], sorted(src) + [EOS]))
        rows.sort(key=lambda r: len(r[1]) + rnd.uniform(0, 2.2))
        buckets = [rows[i:i + batch] for i in range(0, n, batch)]
        rnd.shuffle(buckets)
        self.rows = [r for b in buckets for r in b]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"src": self.rows[i][0], "tgt": self.rows[i][1]}


class LengthWeightCollator:
    def __init__(self, strength=0.3):
        self.strength = strength

    def pad(self, seqs, fill):
        out = torch.full((len(seqs), max(map(len, seqs))), fill)
        for i, s in enumerate(seqs):
            out[i, :len(s)] = torch.tensor(s)
        return out

    def __call__(self, features):
        src = self.pad([f["src"] for f in features], PAD)
        length = torch.tensor([float(len(f["tgt"])) for f in features])
        z = (length - length.mean()) / length.std()
        return {
            "input_ids": src,
            "attention_mask": (src != PAD).long(),
            "labels": self.pad([f["tgt"] for f in features], -100),
            "sample_weight": torch.exp(self.strength * z),
        }


class WeightedTrainer(Trainer):
    last = None

    def _get_train_sampler(self, *a, **k):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("sample_weight")
        out = model(**inputs)
        labels = inputs["labels"]
        tok = F.cross_entropy(out.logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
        per_row = tok.sum(1) / (labels != -100).sum(1)
        loss = (weight * per_row).sum() / weight.sum()
        WeightedTrainer.last = loss.item()
        return (loss, out) if return_outputs else loss


class Say(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        print(f"step {state.global_step} loss {WeightedTrainer.last:.6f}", flush=True)


def main():
    set_seed(17)
    cfg = T5Config(vocab_size=len(VOCAB) + 2, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4,
                   dropout_rate=0.0, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=EOS)
    model = T5ForConditionalGeneration(cfg)
    data = Manuals(320, 8, seed=SEED)
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=8, max_steps=40, learning_rate=2e-3,
                                 lr_scheduler_type="linear", warmup_steps=4, logging_strategy="no", save_strategy="no",
                                 report_to=[], disable_tqdm=True, use_cpu=True, seed=17,
                                 remove_unused_columns=False)
        trainer = WeightedTrainer(model=model, args=args, train_dataset=data,
                                  data_collator=LengthWeightCollator(), callbacks=[Say()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("abs weight sum", sum(p.detach().double().abs().sum().item() for p in model.parameters()), flush=True)


SEED = 8
if __name__ == "__main__":
    main()
