"""Teach a tiny Llama to continue knitting instructions (TRL's SFTTrainer with a collator of our own).

Only the part after "then" is taught. Rows that are mere cast-on notes have no such part, and whole micro-batches of them
are normal: they give a loss of zero, and the other micro-batch of the step carries the gradient.
"""
import os
import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
hf_logging.set_verbosity_error()

WORDS = ["<pad>", "<eos>", "<unk>", "then", "row", "knit", "purl", "slip", "yarnover", "k2tog", "ssk", "caston", "stitches",
         "repeat", "turn"] + [str(i) for i in range(1, 21)]


def make_tokenizer():
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def instructions(rng, row):
    if row % 8 in (4, 5):  # the notes stand in pairs, as in the booklet
        return f"caston {rng.randint(1, 20)} stitches turn"
    n = rng.randint(1, 9)
    first, second = rng.sample(["knit", "purl", "slip", "ssk", "k2tog"], 2)
    return f"row {n} {first} {n} {second} {n} then row {n + 1} {second} {n + 1} {first} {n + 1} repeat"


class ThenCollator:
    """Pads to the longest row and keeps as labels what stands after the word `then`."""

    def __init__(self, tok):
        self.pad, self.then = tok.pad_token_id, tok.convert_tokens_to_ids("then")

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad)
        labels = torch.full((len(rows), width), -100)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for i, r in enumerate(rows):
            line = r["input_ids"]
            ids[i, :len(line)] = torch.tensor(line)
            mask[i, :len(line)] = 1
            if self.then in line:
                cut = line.index(self.then) + 1
                labels[i, cut:len(line)] = torch.tensor(line[cut:])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class InOrder(SFTTrainer):
    def _get_train_sampler(self, *args, **kw):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Printed(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            acc = logs.get("mean_token_accuracy")
            print(f"step {state.global_step} loss {logs['loss']:.6f} acc {'-' if acc is None else f'{acc:.4f}'}", flush=True)


def main():
    set_seed(3)
    tok = make_tokenizer()
    rng = random.Random(8)
    texts = [instructions(rng, r) for r in range(120)]
    data = Dataset.from_list([{"input_ids": tok(t)["input_ids"] + [tok.eos_token_id]} for t in texts])
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                         pad_token_id=0, eos_token_id=1, bos_token_id=None))
    args = SFTConfig(output_dir="/tmp/sft_knitting_charts", per_device_train_batch_size=2, gradient_accumulation_steps=2,
                     max_steps=36, learning_rate=3e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
                     use_cpu=True, bf16=False, gradient_checkpointing=False, remove_unused_columns=False,
                     dataset_kwargs={"skip_prepare_dataset": True}, seed=3)
    trainer = InOrder(model=model, args=args, train_dataset=data, processing_class=tok, data_collator=ThenCollator(tok),
                      callbacks=[Printed()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
