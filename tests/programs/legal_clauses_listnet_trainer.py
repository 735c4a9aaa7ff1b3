"""Cross-encoder reranking of contract clauses: lists of candidates with grades, ListNet on top of a small BERT."""
import tempfile
import warnings

import torch
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

warnings.filterwarnings("ignore")
VOCAB, CANDIDATES, QLEN, DLEN = 120, 6, 4, 8
CLS, SEP = 1, 2


class Lists(torch.utils.data.Dataset):
    """For each question a list of candidates; grade = how many of the words of the question a clause contains."""

    def __init__(self, n=240, seed=31):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            q = torch.randint(5, 40, (QLEN,), generator=g)
            docs, grades = [], []
            for _ in range(CANDIDATES):
                d = torch.randint(40, VOCAB, (DLEN,), generator=g)
                hits = max(0, int(torch.randint(0, 5, (1,), generator=g)) - 1)
                d[:hits] = q[:hits]
                docs.append(d[torch.randperm(DLEN, generator=g)])
                grades.append(len(set(q.tolist()) & set(d.tolist())))
            self.rows.append({"q": q, "docs": docs, "grades": grades})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class ListCollator:
    def __call__(self, rows):
        ids, types = [], []
        for r in rows:
            for d in r["docs"]:
                ids.append(torch.cat([torch.tensor([CLS]), r["q"], torch.tensor([SEP]), d, torch.tensor([SEP])]))
                types.append(torch.tensor([0] * (QLEN + 2) + [1] * (DLEN + 1)))
        grades = torch.tensor([r["grades"] for r in rows], dtype=torch.float32)
        target = grades / grades.sum(dim=1, keepdim=True)
        return {"input_ids": torch.stack(ids), "token_type_ids": torch.stack(types), "target": target}


class ListTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        target = inputs.pop("target")
        out = model(**inputs)
        scores = out.logits.view(target.shape)
        loss = -(target * scores.log_softmax(dim=1)).sum(dim=1).mean()
        return (loss, out) if return_outputs else loss

    def training_step(self, model, inputs, *args, **kwargs):
        self.last_loss = super().training_step(model, inputs, *args, **kwargs)
        return self.last_loss


class Report(TrainerCallback):
    trainer = None
    count = 0

    def on_step_end(self, args, state, control, **kwargs):
        Report.count += 1
        print(f"step {Report.count} listnet {Report.trainer.last_loss.item():.6f}", flush=True)


def build():
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        max_position_embeddings=32, num_labels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config)


def main():
    set_seed(9)
    model = build()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, per_device_train_batch_size=6, max_steps=40, learning_rate=2e-3,
                                 lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_strategy="no",
                                 disable_tqdm=True, use_cpu=True, remove_unused_columns=False, seed=9, data_seed=9)
        trainer = ListTrainer(model=model, args=args, train_dataset=Lists(), data_collator=ListCollator(),
                              callbacks=[Report()])
        trainer.remove_callback(PrinterCallback)
        Report.trainer = trainer
        trainer.train()
    print("abs", sum(p.detach().abs().double().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
