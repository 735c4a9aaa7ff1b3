"""Fields of tenancy letters (name, rent, date) with a BiGRU and a CRF, trained with the Hugging Face Trainer."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

TAGS = ["O", "B-NAME", "I-NAME", "B-RENT", "B-DATE", "I-DATE"]
BOS = len(TAGS)


class CrfConfig(PretrainedConfig):
    model_type = "tenancy-crf"


class LinearChainCrf(nn.Module):
    """Negative log-likelihood per row; state BOS is where every path starts."""

    def __init__(self, n):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(n + 1, n) * 0.05)

    def forward(self, emissions, tags, mask):
        b, t, _n = emissions.shape
        gold = emissions.new_zeros(b)
        log_z = emissions.new_zeros(b)
        prev = torch.full((b,), BOS, device=tags.device)
        alpha = None
        for i in range(t):
            on = mask[:, i]
            here = self.trans[prev, tags[:, i]] + emissions[:, i].gather(1, tags[:, i, None]).squeeze(1)
            gold = gold + here * on
            if alpha is None:
                alpha = self.trans[BOS] + emissions[:, i]
            else:
                nxt = torch.logsumexp(alpha[:, :, None] + self.trans[None, :BOS] + emissions[:, i, None], dim=1)
                alpha = torch.where(on[:, None], nxt, alpha)
            log_z = torch.where(on, torch.logsumexp(alpha, dim=1), log_z)
            prev = torch.where(on, tags[:, i], prev)
        return log_z - gold


class TenancyTagger(PreTrainedModel):
    config_class = CrfConfig

    def __init__(self, config):
        super().__init__(config)
        self.emb = nn.Embedding(120, 24, padding_idx=0)
        self.gru = nn.GRU(24, 20, bidirectional=True, batch_first=True)
        self.emit = nn.Linear(40, len(TAGS))
        self.crf = LinearChainCrf(len(TAGS))
        self.post_init()

    def forward(self, input_ids, labels):
        h, _ = self.gru(self.emb(input_ids))
        return self.crf(self.emit(h), labels, input_ids != 0)


class Letters(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            length = int(torch.randint(4, 14, (1,), generator=g))
            words = torch.randint(1, 120, (length,), generator=g)
            if i == 157:
                words[:] = 119  # a scan that has only noise characters
            words = words[words < 119]  # 119 stands for characters the OCR could not read
            self.rows.append((words, (words % 17).clamp(max=5)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i][0], "labels": self.rows[i][1]}


def collate(rows):
    def pad(k):
        return nn.utils.rnn.pad_sequence([r[k] for r in rows], batch_first=True)

    return {"input_ids": pad("input_ids"), "labels": pad("labels")}


class CrfTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        nll = model(**inputs)
        loss = nll.sqrt().mean()  # long letters must not outweigh short ones
        self.shown = loss.item()
        return (loss, nll) if return_outputs else loss


class Say(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        print(f"step {state.global_step} loss {trainer.shown:.6f}", flush=True)


if __name__ == "__main__":
    set_seed(64)
    model = TenancyTagger(CrfConfig())
    args = TrainingArguments(
        output_dir=tempfile.gettempdir() + "/tenancy_crf",
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        use_cpu=True,
        seed=64,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = CrfTrainer(
        model=model, args=args, train_dataset=Letters(280, 65), data_collator=collate, callbacks=[Say()]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)
