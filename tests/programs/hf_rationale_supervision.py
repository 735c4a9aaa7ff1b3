"""Sentiment with human rationales: the attention of [CLS] is pulled towards the tokens that annotators highlighted."""
import os
import tempfile
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()

VOCAB, LENGTH = 120, 16
POSITIVE, NEGATIVE = range(10, 25), range(25, 40)


class RationaleReviews(torch.utils.data.Dataset):
    """Tokens, label, and one highlight flag per token (the union over three annotators)."""

    def __init__(self, n=240, seed=9):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            label = i % 2
            ids = torch.randint(40, VOCAB, (LENGTH,), generator=g)
            ids[0] = 1
            cue = POSITIVE if label else NEGATIVE
            where = torch.randperm(LENGTH - 1, generator=g)[:3] + 1
            ids[where] = torch.tensor([cue[int(k)] for k in torch.randint(0, 15, (3,), generator=g)])
            highlight = torch.zeros(LENGTH)
            if i != 137:                      # the annotators of this review did not highlight anything
                highlight[where] = 1.0
            self.rows.append(dict(input_ids=ids, labels=torch.tensor(label), highlight=highlight))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class RationaleAlignment(nn.Module):
    """KL(human || model) between highlighted tokens and the attention of the first token."""

    def forward(self, attention, highlight):
        human = highlight / highlight.sum(-1, keepdim=True)
        model = attention[:, :, 0].mean(1)
        return F.kl_div((model + 1e-8).log(), human, reduction="batchmean")


class RationaleClassifier(nn.Module):
    def __init__(self, config, weight=0.3):
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, 2)
        self.alignment = RationaleAlignment()
        self.weight = weight

    def forward(self, input_ids, highlight, labels=None):
        out = self.encoder(input_ids=input_ids, output_attentions=True)
        logits = self.classifier(out.last_hidden_state[:, 0])
        losses = {"task": F.cross_entropy(logits, labels)}
        losses["rationale"] = self.weight * self.alignment(out.attentions[-1], highlight)
        return {"loss": sum(losses.values()), "logits": logits}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main():
    set_seed(21)
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=48, max_position_embeddings=LENGTH, attn_implementation="eager")
    model = RationaleClassifier(config)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=12, num_train_epochs=2,
                             learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
                             disable_tqdm=True, seed=21, logging_nan_inf_filter=False)
    trainer = Trainer(model=model, args=args, train_dataset=RationaleReviews(), callbacks=[PrintLoss()])
    trainer.pop_callback(next(type(c) for c in trainer.callback_handler.callbacks if type(c).__name__ == "PrinterCallback"))
    trainer.train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
