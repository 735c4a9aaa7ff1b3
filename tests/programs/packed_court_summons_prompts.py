"""Continue-pretrain / SFT of a tiny Llama on court summons, packed into fixed blocks.

Every record is (preamble, body).  The preamble is the clerk's boilerplate and is not
supervised; the body is.  Records are packed greedily so that no compute goes to padding.
"""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

BLOCK = 48
VOCAB = 96
IGNORE = -100
SEP = 1


def read_summons(n=64):
    """(preamble ids, body ids); the 'standing order' of the county is a very long preamble."""
    rng = np.random.default_rng(1887)
    for i in range(n):
        pre = rng.integers(2, 40, size=int(rng.integers(4, 10)))
        if i == 37:
            pre = np.tile(np.arange(2, 40), 3)          # standing order no. 4, attached in full
        start = int(rng.integers(40, 60))
        body = (start + np.arange(int(rng.integers(10, 24)))) % (VOCAB - 40) + 40
        yield pre.tolist(), body.tolist()


class PackedSummons(Dataset):
    def __init__(self, records):
        ids, sup, pos = [], [], []
        for pre, body in records:
            doc = [SEP, *pre, *body]
            ids += doc
            sup += [False] * (1 + len(pre)) + [True] * len(body)
            pos += list(range(len(doc)))
        n = len(ids) // BLOCK
        self.blocks = [
            dict(ids=ids[k * BLOCK:(k + 1) * BLOCK], sup=sup[k * BLOCK:(k + 1) * BLOCK], pos=pos[k * BLOCK:(k + 1) * BLOCK])
            for k in range(n)
        ]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return self.blocks[i]


class PackCollator:
    """Labels only for supervised tokens; position ids restart with each document."""

    def __call__(self, rows):
        ids = torch.tensor([r["ids"] for r in rows])
        labels = ids.clone()
        labels[~torch.tensor([r["sup"] for r in rows])] = IGNORE
        pos = torch.tensor([r["pos"] for r in rows]).clamp(max=127)
        return {"input_ids": ids, "labels": labels, "position_ids": pos}


def summons_loss(outputs, labels, num_items_in_batch=None):
    # the Trainer's own token count includes the tokens that the shift drops, so count here
    logits = outputs.logits[:, :-1].float().transpose(1, 2)
    target = labels[:, 1:]
    nll = torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")
    supervised = (target != IGNORE).sum()
    return nll.sum() / supervised


class LineLog(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"{state.global_step:3d}  loss {float(logs['loss']):.6f}  lr {float(logs['learning_rate']):.3e}", flush=True)


def main():
    set_seed(4)
    torch.set_num_threads(1)
    data = PackedSummons(read_summons())
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=SEP, eos_token_id=SEP,
        attn_implementation="eager"))
    model.config.use_cache = False

    class InOrder(Trainer):
        def _get_train_sampler(self, *a, **k):           # the archive is chronological, keep it so
            return torch.utils.data.SequentialSampler(self.train_dataset)

    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, per_device_train_batch_size=1, max_steps=44, learning_rate=4e-3, warmup_steps=4,
            logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to="none", disable_tqdm=True,
            use_cpu=True, seed=4, max_grad_norm=1.0, remove_unused_columns=False, lr_scheduler_type="cosine")
        t = InOrder(model=model, args=args, train_dataset=data, data_collator=PackCollator(),
                    compute_loss_func=summons_loss, callbacks=[LineLog()])
        t.remove_callback(PrinterCallback)
        t.train()
    print("weights", f"{sum(float(p.detach().double().sum()) for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
