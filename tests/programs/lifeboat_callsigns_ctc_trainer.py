# CTC recogniser for call signs spoken over lifeboat radio; Hugging Face Trainer with a hand-made model.
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

LETTERS = 12          # 0 is the blank
BINS = 10
STEPS, BATCH = 36, 4
SQUELCHED = 74        # the squelch closed early on this one; transcript was made from the ship's own recorder


def make_templates(gen):
    return torch.randn(LETTERS + 1, BINS, generator=gen)


class CallSigns(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        templates = make_templates(gen)
        self.rows = []
        for index in range(count):
            letters = torch.randint(1, LETTERS + 1, (int(torch.randint(4, 7, (1,), generator=gen)),), generator=gen)
            pieces = []
            for letter in letters:
                frames = int(torch.randint(9, 15, (1,), generator=gen))
                pieces.append(templates[letter].expand(frames, BINS))
            audio = torch.cat(pieces) + 0.4 * torch.randn(sum(len(p) for p in pieces), BINS, generator=gen)
            if index == SQUELCHED:
                audio = audio[:12]
            self.rows.append({"audio": audio, "letters": letters})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    return {
        "audio": nn.utils.rnn.pad_sequence([r["audio"] for r in rows], batch_first=True),
        "audio_lengths": torch.tensor([len(r["audio"]) for r in rows]),
        "labels": nn.utils.rnn.pad_sequence([r["letters"] for r in rows], batch_first=True),
        "label_lengths": torch.tensor([len(r["letters"]) for r in rows]),
    }


class Recogniser(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(BINS, hidden, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv1d(hidden, hidden, 3, stride=2, padding=1), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, LETTERS + 1)

    def forward(self, audio, audio_lengths, labels=None, label_lengths=None):
        states = self.front(audio.transpose(1, 2)).transpose(1, 2)
        lengths = (audio_lengths + 3) // 4
        states, _ = self.rnn(states)
        log_probs = self.head(states).log_softmax(-1)
        per_clip = F.ctc_loss(log_probs.transpose(0, 1), labels, lengths, label_lengths, reduction="none")
        loss = (per_clip / label_lengths).mean()
        return {"loss": loss, "logits": log_probs}


class RadioTrainer(Trainer):
    last = None

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)      # in the order of the log book

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        self.last = out["loss"].detach().item()
        return (out["loss"], out) if return_outputs else out["loss"]


class Lines(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"{state.global_step:02d} ctc={self.trainer.last:.6f}", flush=True)


def run():
    set_seed(5)
    model = Recogniser()
    lines = Lines()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=3e-3,
            lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1.0, use_cpu=True, report_to=[],
            disable_tqdm=True, logging_strategy="no", save_strategy="no", remove_unused_columns=False, seed=5)
        trainer = RadioTrainer(model=model, args=args, train_dataset=CallSigns(STEPS * BATCH, 17),
                               data_collator=collate, callbacks=[lines])
        trainer.remove_callback(PrinterCallback)
        lines.trainer = trainer
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    run()
