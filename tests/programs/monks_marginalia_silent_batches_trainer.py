"""Answers to marginal notes: HF Trainer, some batches supervise nothing at all (loss exactly 0), AUC is NaN at times."""
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

VOCAB, LENGTH = 40, 18


def rows(n, seed, silent):
    g = torch.Generator().manual_seed(seed)
    out = []
    for i in range(n):
        a = int(torch.randint(0, VOCAB, (1,), generator=g))
        ids = (a + 3 * torch.arange(LENGTH)) % VOCAB
        labels = ids.clone()
        labels[:int(torch.randint(4, 12, (1,), generator=g))] = -100
        if silent(i):
            labels[:] = -100
        out.append({"input_ids": ids, "labels": labels})
    return out


class NoteTrainer(Trainer):
    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"])
        target = inputs["labels"][:, 1:]
        total = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
        count = (target != -100).sum()
        loss = total / count.clamp(min=1)
        return (loss, {"logits": out.logits}) if return_outputs else loss


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']} norm {logs['grad_norm']}", flush=True)
        elif "eval_rare_accuracy" in logs:
            print(f"eval rare accuracy {logs['eval_rare_accuracy']:.4f} ppl of the unread {logs['eval_unread']}", flush=True)


def metrics(pred):
    guess = pred.predictions[:, :-1].argmax(-1)
    want = pred.label_ids[:, 1:]
    rare = (want >= 0) & (want < 2)
    with np.errstate(all="ignore"):
        return {"rare_accuracy": float(np.float64((guess == want)[rare].sum()) / rare.sum()), "unread": float("nan")}


def main():
    set_seed(8)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.transformer.h[0].requires_grad_(False)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, num_train_epochs=1, learning_rate=3e-3,
                                 report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True,
                                 eval_strategy="steps", eval_steps=10, warmup_steps=5)
        trainer = NoteTrainer(model=model, args=args, train_dataset=rows(320, 1, lambda i: i // 8 in (9, 10, 23, 31)),
                              eval_dataset=rows(16, 2, lambda i: i % 2), compute_metrics=metrics,
                              callbacks=[Lines()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
