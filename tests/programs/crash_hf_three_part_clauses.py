import os
import tempfile
os.environ.setdefault('DS_ACCELERATOR', 'cpu')
import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

torch.manual_seed(0)
CLS, SEP, PAD = 1, 2, 0


def clause(i, parts=2):
    """[CLS] part [SEP] part [SEP] ..., the segment id counts the parts"""
    ids, seg = [CLS], [0]
    for p in range(parts):
        words = [3 + (7 * i + 3 * p + k) % 27 for k in range(3 + (i + p) % 3)]
        ids += words + [SEP]
        seg += [p] * (len(words) + 1)
    return {"ids": ids, "seg": seg, "binding": i % 2}


class Contracts(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(60):
            yield clause(i, parts=3 if i == 26 else 2)


def collate(rows):
    n = max(len(r["ids"]) for r in rows)
    pad = lambda key: torch.tensor([r[key] + [PAD] * (n - len(r[key])) for r in rows])
    ids = pad("ids")
    return dict(ids=ids, seg=pad("seg"), mask=(ids != PAD).long(), labels=torch.tensor([r["binding"] for r in rows]))


class ClauseReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                         intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.,
                                         attention_probs_dropout_prob=0.))
        self.binding = nn.Linear(16, 2)

    def forward(self, ids, seg, mask, labels):
        pooled = self.bert(input_ids=ids, token_type_ids=seg, attention_mask=mask).pooler_output
        loss = nn.functional.cross_entropy(self.binding(pooled), labels)
        return {"loss": loss, "logits": self.binding(pooled)}


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(state.global_step, logs["loss"], flush=True)


reader = ClauseReader()
trainer = Trainer(reader, TrainingArguments(tempfile.mkdtemp(), max_steps=15, per_device_train_batch_size=4,
                                            learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none",
                                            disable_tqdm=True, use_cpu=True, remove_unused_columns=False),
                  train_dataset=Contracts(), data_collator=collate, callbacks=[Tell()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print(sum(p.sum().item() for p in reader.parameters()))
