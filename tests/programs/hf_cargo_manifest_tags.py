"""Tags the words of cargo manifests (quantity, packaging, goods, hazard) with a small BERT and the HF Trainer.

Tags inside an entity never open a line, so their logits are shut at the first word. Scores of a tag that a port's
sheet does not hold are undefined and stay NaN in the report.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (BertConfig, BertModel, BertPreTrainedModel, Trainer, TrainerCallback, TrainingArguments,
                          set_seed)
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.trainer_callback import PrinterCallback, ProgressCallback

TAGS = ["O", "B-QTY", "B-PACK", "B-GOODS", "I-GOODS", "B-HAZ", "I-HAZ"]
PACK = ["crates", "drums", "bales", "sacks"]
GOODS = [["cork"], ["olive", "oil"], ["copper", "wire"], ["tea"], ["raw", "cotton", "lint"]]
HAZ = [["corrosive"], ["flammable", "liquid"]]
FILL = ["of", "marked", "stowed", "deck", "aft", "in", "good", "order"]
WORDS = ["<pad>", "<num>"] + PACK + sorted({w for g in GOODS + HAZ for w in g}) + FILL


class Manifests(Dataset):
    def __init__(self, n, seed, hazard=0.3):
        rng = np.random.default_rng(seed)
        self.rows = [self.line(rng, hazard) for _ in range(n)]

    @staticmethod
    def line(rng, hazard):
        words, tags = ["<num>", PACK[rng.integers(4)], "of"], ["B-QTY", "B-PACK", "O"]
        g = GOODS[rng.integers(len(GOODS))]
        words += g
        tags += ["B-GOODS"] + ["I-GOODS"] * (len(g) - 1)
        if rng.random() < hazard:
            h = HAZ[rng.integers(2)]
            words += ["marked"] + h
            tags += ["O", "B-HAZ"] + ["I-HAZ"] * (len(h) - 1)
        for _ in range(rng.integers(0, 4)):
            words.append(FILL[rng.integers(len(FILL))])
            tags.append("O")
        return [WORDS.index(w) for w in words], [TAGS.index(t) for t in tags]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"ids": self.rows[i][0], "labels": self.rows[i][1]}


def collate(rows):
    n = max(len(r["ids"]) for r in rows)
    pad = lambda v, fill: v + [fill] * (n - len(v))
    return {"input_ids": torch.tensor([pad(r["ids"], 0) for r in rows]),
            "attention_mask": torch.tensor([pad([1] * len(r["ids"]), 0) for r in rows]),
            "labels": torch.tensor([pad(r["labels"], -100) for r in rows])}


class ManifestTagger(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.out = nn.Linear(config.hidden_size, len(TAGS))
        shut = torch.tensor([t.startswith("I-") for t in TAGS])
        self.register_buffer("shut", shut, persistent=False)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        logits = self.out(self.bert(input_ids, attention_mask=attention_mask)[0])
        opening = torch.zeros(logits.shape[1], 1, dtype=torch.bool)
        opening[0] = True
        logits = logits.masked_fill(opening & self.shut, float("-inf"))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return TokenClassifierOutput(loss=loss, logits=logits)


def scores(pred):
    guess, gold = pred.predictions.argmax(-1), pred.label_ids
    keep = gold != -100
    result = {"accuracy": float((guess == gold)[keep].mean())}
    with np.errstate(invalid="ignore"):
        for k, tag in enumerate(TAGS):
            hit = np.float64(((guess == k) & (gold == k) & keep).sum())
            result["recall_" + tag] = float(hit / ((gold == k) & keep).sum())
            result["precision_" + tag] = float(hit / ((guess == k) & keep).sum())
    result["macro"] = float(np.mean([v for key, v in result.items() if key != "accuracy"]))
    return result


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)
        elif "eval_macro" in logs:
            print(f"  safe port: accuracy {logs['eval_accuracy']:.4f} macro {logs['eval_macro']:.4f} "
                  f"hazard recall {logs['eval_recall_B-HAZ']:.4f}", flush=True)


def main():
    set_seed(6)
    config = BertConfig(vocab_size=len(WORDS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=96, max_position_embeddings=32)
    args = TrainingArguments(output_dir="/tmp/hf_cargo_manifest_tags", max_steps=36, per_device_train_batch_size=16,
                             learning_rate=2e-3, warmup_steps=4, logging_steps=1, eval_strategy="steps", eval_steps=12,
                             save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=6,
                             remove_unused_columns=False)
    trainer = Trainer(model=ManifestTagger(config), args=args, data_collator=collate,
                      train_dataset=Manifests(320, 1), eval_dataset=Manifests(48, 2, hazard=0.0),
                      compute_metrics=scores, callbacks=[Report()])
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.train()
    print("%.4f" % sum(p.detach().abs().sum().item() for p in trainer.model.parameters()), flush=True)


if __name__ == "__main__":
    main()
