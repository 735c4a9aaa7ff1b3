"""Fine-tune a tiny GPT-2 on synthetic vesper verses with the HF Trainer, an own collator and an own loss function."""

import random
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

SYLLABLES = ["do", "mi", "nus", "lau", "da", "te", "pu", "e", "ri", "no", "men", "in", "ex", "cel", "sis"]
PAD, BOS, EOS = 0, 1, 2
EDITOR_MARKS = [3, 4, 5]  # marks of the editors: may be read, must never be sung
OFFSET = 6
VOCAB = OFFSET + len(SYLLABLES)
STEPS = 42


class Verses(Dataset):
    def __init__(self, n, seed=5):
        rng = random.Random(seed)
        self.rows = []
        for _i in range(n):
            start = rng.randrange(len(SYLLABLES))
            length = rng.randint(4, 11)
            body = [OFFSET + (start + 2 * k) % len(SYLLABLES) for k in range(length)]
            if rng.random() < 0.3:
                body.insert(rng.randrange(1, length), rng.choice(EDITOR_MARKS))
            self.rows.append({"ids": [BOS, *body, EOS], "feast": rng.randrange(5)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@dataclass
class VerseCollator:
    pad: int = PAD

    def __call__(self, rows):
        width = max(len(r["ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), -100)
        for k, r in enumerate(rows):
            n = len(r["ids"])
            ids[k, :n] = torch.tensor(r["ids"])
            mask[k, :n] = 1
            labels[k, :n] = torch.tensor([-100 if t in EDITOR_MARKS else t for t in r["ids"]])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class StagedLoss:
    """Nats per verse (not per token); the weight of the verse doubles with each stage of the curriculum."""

    def __init__(self):
        self.calls = 0
        self.ban = torch.zeros(VOCAB, dtype=torch.bool)
        self.ban[[*EDITOR_MARKS, PAD, BOS]] = True

    def __call__(self, outputs, labels, num_items_in_batch=None):
        stage = 2.0 ** (self.calls // 12)
        self.calls += 1
        logits = outputs.logits[:, :-1].masked_fill(self.ban, float("-inf"))
        target = labels[:, 1:]
        nll = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100, reduction="none")
        loss = stage * nll.sum(1).mean()
        with torch.no_grad():
            marks = torch.isin(target, torch.tensor([OFFSET + 12]))
            rare = nll[marks].mean()  # nan where the syllable does not occur
        print(f"call {self.calls} stage {stage:.0f} loss {loss.item():.7f} rare-syllable {rare.item():.5f}", flush=True)
        return loss


def main():
    set_seed(11)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=24,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            learning_rate=2e-3,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            seed=11,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Verses(200),
            data_collator=VerseCollator(),
            compute_loss_func=StagedLoss(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    main()
