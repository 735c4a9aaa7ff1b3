"""Next-token model over a lamplighter's logbook, shortest entries first.

The Trainer's own loop is kept, but training_step is ours: it decides how much of each entry is read
(a curriculum over the length), sums the token losses and logs how well the rare "fog" symbol is hit.
"""
import logging
import math
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.disable(logging.WARNING)
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

FOG = 23          # a rare symbol
STREETS = 24      # 0..22 street lamps, 23 fog
LENGTH = 40


class Logbook(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, 23, (n, 1), generator=g)
        stride = torch.randint(1, 4, (n, 1), generator=g)
        self.rounds = (start + stride * torch.arange(LENGTH)) % 23
        fog = torch.rand(n, LENGTH, generator=g) < 0.004
        self.rounds[fog] = FOG

    def __len__(self):
        return len(self.rounds)

    def __getitem__(self, i):
        return {"input_ids": self.rounds[i], "labels": self.rounds[i].clone()}


class Curriculum:
    """Length of the part that is read; a reset to short entries in the middle of the run, as in the paper copy."""

    def __init__(self, first, last, every, reset_at):
        self.first, self.last, self.every, self.reset_at = first, last, every, reset_at

    def __call__(self, step):
        if step >= self.reset_at:
            step -= self.reset_at
        return min(self.last, self.first + 6 * (step // self.every))


class LamplighterTrainer(Trainer):
    def __init__(self, *args, curriculum, **kw):
        super().__init__(*args, **kw)
        self.curriculum = curriculum
        self.micro = 0
        self.window = []

    def _get_train_sampler(self, *args, **kw):
        return SequentialSampler(self.train_dataset)

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        width = self.curriculum(self.state.global_step)
        ids = inputs["input_ids"][:, :width]
        logits = model(input_ids=ids).logits[:, :-1]
        target = ids[:, 1:]
        # fog is never predicted at the first lamp of a round
        veto = torch.zeros_like(logits)
        veto[:, 0, FOG] = float("-inf")
        target = target.clone()
        target[:, 0][target[:, 0] == FOG] = -100
        # summed over the tokens: the numbers grow with the curriculum, on purpose
        loss = torch.nn.functional.cross_entropy(
            (logits + veto).flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
        loss = loss / self.args.gradient_accumulation_steps
        loss.backward()
        with torch.no_grad():
            seen = target == FOG
            hit = (logits.argmax(-1)[seen] == FOG).float().mean()    # NaN where there was no fog; only shown
        self.window.append((loss.item(), width, hit.item()))
        self.micro += 1
        return loss.detach()


class Ticker(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kw):
        rows, self.trainer.window = self.trainer.window, []
        total = sum(r[0] for r in rows)
        fog = rows[-1][2]
        print(f"step {state.global_step:3d} width {rows[-1][1]:2d} summed {total:.5f} "
              f"fog-hit {'nan' if math.isnan(fog) else format(fog, '.2f')}", flush=True)


def main():
    set_seed(1887)
    config = GPT2Config(vocab_size=STREETS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    for p in model.transformer.wpe.parameters():     # positions stay as they were drawn
        p.requires_grad_(False)
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=8, gradient_accumulation_steps=2,
                                 max_steps=32, learning_rate=2e-3, max_grad_norm=1.0, logging_strategy="no",
                                 save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=1887,
                                 warmup_steps=4)
        ticker = Ticker()
        trainer = LamplighterTrainer(model=model, args=args, train_dataset=Logbook(256, 3), callbacks=[ticker],
                                     curriculum=Curriculum(8, LENGTH, 4, reset_at=24))
        ticker.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
