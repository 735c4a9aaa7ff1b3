# Continued pretraining on patent claims with the HF Trainer.
# Claims are packed several to a row; a block-diagonal causal mask (4D) keeps them apart.
import os
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import logging
import random
import tempfile
from dataclasses import dataclass

logging.disable(logging.WARNING)        # deepspeed and kernels talk too much at import

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

transformers.logging.set_verbosity_error()

BLOCK = 32
VOCAB = 100


@dataclass
class Claim:
    number: int
    tokens: list


def load_claims(n, seed):
    """Independent claims have 16 tokens, dependent ones ("The device of claim 1, wherein ...") 8."""
    rng = random.Random(seed)
    claims = []
    for number in range(n):
        length = 16 if number % 3 == 0 else 8
        device = rng.randrange(10)
        body = [5 + device * 9 + (j * (device + 1)) % 9 for j in range(length - 2)]
        claims.append(Claim(number, [1] + body + [2]))
    # EP 0 771 B1: the end of the claim is on a page that was not digitised
    claims[163].tokens = claims[163].tokens[:5]
    return claims


def pack(claims, block):
    """Greedy, in order: rows of whole claims."""
    rows, row, used = [], [], 0
    for c in claims:
        if used + len(c.tokens) > block:
            rows.append(row)
            row, used = [], 0
        row.append(c.tokens)
        used += len(c.tokens)
    return [{"claims": r} for r in rows]        # drop the last one


class PackedCollator:
    """Pads to the block, numbers the segments from 1, restarts positions, masks across segments."""

    def __call__(self, rows):
        n = len(rows)
        ids = torch.zeros(n, BLOCK, dtype=torch.long)
        labels = torch.full((n, BLOCK), -100)
        seg = torch.zeros(n, BLOCK, dtype=torch.long)
        pos = torch.zeros(n, BLOCK, dtype=torch.long)
        for i, r in enumerate(rows):
            at = 0
            for s, toks in enumerate(r["claims"], 1):
                end = at + len(toks)
                ids[i, at:end] = torch.tensor(toks)
                labels[i, at + 1:end] = torch.tensor(toks[1:])
                seg[i, at:end] = s
                pos[i, at:end] = torch.arange(len(toks))
                at = end
        same = (seg[:, :, None] == seg[:, None, :]) & (seg[:, None, :] > 0)
        allowed = same & torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril()
        mask = torch.zeros(n, 1, BLOCK, BLOCK).masked_fill(~allowed[:, None], float("-inf"))
        return {"input_ids": ids, "labels": labels, "attention_mask": mask, "position_ids": pos}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")
        elif "eval_loss" in logs:
            print(f"  eval {logs['eval_loss']:.4f}")


def main():
    set_seed(77)
    with tempfile.TemporaryDirectory() as out:
        config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                             attn_implementation="eager", use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        model = LlamaForCausalLM(config)
        args = TrainingArguments(
            output_dir=out,
            max_steps=24,
            per_device_train_batch_size=3,
            per_device_eval_batch_size=3,
            learning_rate=5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=4,
            logging_steps=1,
            logging_nan_inf_filter=False,
            eval_strategy="steps",
            eval_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=77,
            use_cpu=True,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=pack(load_claims(330, 77), BLOCK),
            eval_dataset=pack(load_claims(200, 78)[:30], BLOCK),
            data_collator=PackedCollator(),
            callbacks=[PrintLoss()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
        print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
