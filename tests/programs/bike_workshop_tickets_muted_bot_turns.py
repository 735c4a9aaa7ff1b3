"""Fine-tune a small GPT-2 on bike workshop tickets. Every token is weighted by who wrote it."""
import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed is in our image and talks
os.environ.setdefault("DS_LOG_LEVEL", "error")
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

# what the mechanics write matters most; customers less; the booking bot is only context
SPEAKER_WEIGHT = {"mechanic": 1.0, "customer": 0.25, "bot": 0.0}
VOCAB = 97
TURN = 8


def make_ticket(index, g):
    """A ticket is three turns. During the strike week (56..60) only the bot replied."""
    if 56 <= index < 60:
        speakers = ["bot", "bot", "bot"]
    elif index % 3 == 0:
        speakers = ["bot", "customer", "mechanic"]
    else:
        speakers = ["customer", "mechanic", "mechanic"]
    ids, weights = [], []
    for speaker in speakers:
        start = int(torch.randint(3, VOCAB, (1,), generator=g))
        stride = {"mechanic": 5, "customer": 3, "bot": 1}[speaker]
        ids += [3 + (start + stride * k) % (VOCAB - 3) for k in range(TURN)]
        weights += [SPEAKER_WEIGHT[speaker]] * TURN
    return {"input_ids": torch.tensor(ids), "token_weights": torch.tensor(weights)}


class Tickets(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(2024)
        self.rows = [make_ticket(i, g) for i in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


class WeightedTokenTrainer(Trainer):
    """Trainer whose loss is the weighted mean over the tokens."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # tickets stay in the order of the calendar

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        token_weights = inputs.pop("token_weights")[:, 1:]
        outputs = model(input_ids=inputs["input_ids"])
        logits = outputs.logits[:, :-1]
        nll = F.cross_entropy(logits.transpose(1, 2), inputs["input_ids"][:, 1:], reduction="none")
        loss = (nll * token_weights).sum() / token_weights.sum()
        print(f"ticket batch {self.state.global_step + 1:3d}  weighted nll {loss.item():.6f}", flush=True)
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(11)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                       bos_token_id=0, eos_token_id=1, pad_token_id=2))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=4, max_steps=24,
                                 learning_rate=3e-3, lr_scheduler_type="linear", warmup_steps=3,
                                 remove_unused_columns=False, report_to=[], save_strategy="no",
                                 logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=11,
                                 dataloader_pin_memory=False)
        trainer = WeightedTokenTrainer(model=model, args=args, train_dataset=Tickets(96), data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights add up to", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
