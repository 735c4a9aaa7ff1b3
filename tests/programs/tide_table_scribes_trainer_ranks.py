# ruff: noqa: B007, E402
"""Transcribing tide tables: tiny GPT-2 on digit strings, HF Trainer on two ranks, evaluation and save on the way.

Scribes' own corrections count more: a weighted token loss, weights from the marginalia (0 = never checked).
"""

import logging
import os
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

DIGITS, WIDTH = 14, 10


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        start = int(torch.randint(0, 10, (1,), generator=g))
        ids = (start + 3 * torch.arange(WIDTH)) % 10
        checked = (torch.rand(WIDTH, generator=g) < 0.6).float()
        checked[1] = 1.0
        rows.append({"input_ids": ids, "trust": checked})
    return rows


def collate(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


class ScribeTrainer(Trainer):
    def __init__(self, *a, **kw):
        super().__init__(*a, **kw)
        self.recent = []

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)  # the page order of the archive

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        out = model(input_ids=inputs["input_ids"])
        logp = F.log_softmax(out.logits[:, :-1].float(), -1)
        tok = -logp.gather(-1, inputs["input_ids"][:, 1:, None]).squeeze(-1)
        trust = inputs["trust"][:, 1:]
        loss = (tok * trust).sum() / trust.sum()
        if model.training:
            self.recent.append(loss.detach())
        return (loss, {"logits": out.logits}) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None


class Ledger(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kw):
        mean = torch.stack(self.trainer.recent).mean()
        self.trainer.recent.clear()
        dist.all_reduce(mean)
        if state.is_world_process_zero:
            print(f"page {state.global_step:2d} loss {mean.item() / 2:.6f}", flush=True)

    def on_evaluate(self, args, state, control, metrics=None, **kw):
        if state.is_world_process_zero:
            print(f"  proof-read: {metrics['eval_loss']:.6f}", flush=True)

    def on_save(self, args, state, control, **kw):
        if state.is_world_process_zero:
            print(f"  filed checkpoint-{state.global_step}", flush=True)


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="tides_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    transformers.set_seed(9)
    train = table(2 * 3 * 2 * 18, 40)  # ranks x rows x accumulation x pages
    # quire 12: the third scribe copied alone, nobody checked these three rows
    for row in train[135:138]:
        row["trust"] = torch.zeros(WIDTH)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=DIGITS,
            n_positions=16,
            n_embd=24,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=10,
            eos_token_id=10,
        )
    )
    args = TrainingArguments(
        output_dir=box[0],
        per_device_train_batch_size=3,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=18,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="steps",
        save_steps=9,
        save_total_limit=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        max_grad_norm=1.0,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
    )
    trainer = ScribeTrainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=table(16, 41),
        data_collator=collate,
        callbacks=[Ledger()],
    )
    trainer.remove_callback(PrinterCallback)  # prints run times
    Ledger.trainer = trainer
    trainer.train()
    if dist.get_rank() == 0:
        print(f"weights {sum(p.double().sum() for p in model.parameters()).item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
