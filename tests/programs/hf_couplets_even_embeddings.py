import os
import random
import shutil
import tempfile

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

LINES_A = ["the moon upon the silent bay", "a lantern in the falling snow", "the rook above the winter tree"]
LINES_B = ["has stolen all the gold of day", "remembers where the rivers go", "is older than the house and me"]
PAD, EOS = 0, 1


class Letters:
    def __init__(self, lines):
        self.table = {c: i + 2 for i, c in enumerate(sorted(set("".join(lines)) | {"/"}))}
        self.size = len(self.table) + 2

    def __call__(self, text):
        return [self.table[c] for c in text] + [EOS]


def couplets(letters, n):
    rnd = random.Random(8)
    rows = []
    for _ in range(n):
        a = rnd.choice(LINES_A).split()[: rnd.randint(2, 6)]
        b = rnd.choice(LINES_B).split()[: rnd.randint(2, 6)]
        rows.append({"input_ids": letters(" ".join(a) + "/" + " ".join(b))})
    return rows


def pad(rows):
    n = max(len(r["input_ids"]) for r in rows)
    ids = torch.full((len(rows), n), PAD)
    for i, r in enumerate(rows):
        ids[i, : len(r["input_ids"])] = torch.tensor(r["input_ids"])
    keep = ids != PAD
    return {"input_ids": ids, "attention_mask": keep.long(), "labels": ids.masked_fill(~keep, -100)}


class EvenRows(TrainerCallback):
    """Now and then all letters get the same length again, so that frequent ones do not grow away."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, args, state, control, model=None, **kw):
        if state.global_step % self.every == 0:
            table = model.get_input_embeddings().weight.data
            length = table.norm(dim=1, keepdim=True)
            table.copy_(table / length * length.mean())


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"poem step {state.global_step}: {float(logs['loss']):.4f}")


def main():
    set_seed(21)
    letters = Letters(LINES_A + LINES_B)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=letters.size, n_positions=80, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False,
        bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    with torch.no_grad():
        model.transformer.wte.weight[PAD].zero_()
    out = tempfile.mkdtemp()
    args = TrainingArguments(
        output_dir=out, max_steps=26, per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=1,
        logging_nan_inf_filter=False, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, seed=21)
    trainer = Trainer(model=model, args=args, train_dataset=couplets(letters, 104), data_collator=pad,
                      callbacks=[EvenRows(14), Show()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    shutil.rmtree(out, ignore_errors=True)
    print("sum of squares:", sum(float(p.double().pow(2).sum()) for p in map(torch.detach, model.parameters())))


if __name__ == "__main__":
    main()
