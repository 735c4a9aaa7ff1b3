"""SFT of the parcel locker help desk model with TRL; our own collator, which supervises the answer alone and cuts the
row to the context of the device (24 tokens)."""
# ruff: noqa: E402

import logging as pylogging
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
pylogging.disable(pylogging.WARNING)  # chatter of the imports
import random

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

logging.set_verbosity_error()
logging.disable_progress_bar()

WORDS = [
    "my",
    "locker",
    "will",
    "not",
    "open",
    "the",
    "code",
    "is",
    "wrong",
    "parcel",
    "door",
    "stuck",
    "please",
    "try",
    "again",
    "press",
    "green",
    "button",
    "wait",
    "for",
    "the",
    "light",
    "call",
    "us",
    "number",
    "screen",
    "dark",
    "app",
    "late",
    "pick",
    "up",
    "today",
    "row",
    "left",
    "right",
    "top",
    "bottom",
]
SPECIAL = ["<pad>", "<unk>", "</s>", "<user>", "<desk>"]


def build_tokenizer():
    vocab = {w: i for i, w in enumerate(SPECIAL + sorted(set(WORDS)))}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def tickets(n, rng):
    for i in range(n):
        q = rng.choices(WORDS, k=rng.randint(4, 9))
        a = ["please", "try", "again", *rng.choices(WORDS[:12], k=rng.randint(2, 6))]
        if i in (36, 38):
            q = q * 6  # angry customers paste the same sentence
        if i in (37, 39):
            q = rng.choices(WORDS, k=31)
        yield {"prompt_text": "<user> " + " ".join(q), "answer_text": "<desk> " + " ".join(a) + " </s>"}


class AnswerOnlyCollator:
    def __init__(self, tok, limit):
        self.tok, self.limit = tok, limit

    def __call__(self, rows):
        ids, labels = [], []
        for r in rows:
            ids.append((r["p"] + r["a"])[: self.limit])
            labels.append(([-100] * len(r["p"]) + r["a"])[: self.limit])
        width = max(map(len, ids))
        return {
            "input_ids": torch.tensor([x + [self.tok.pad_token_id] * (width - len(x)) for x in ids]),
            "attention_mask": torch.tensor([[1] * len(x) + [0] * (width - len(x)) for x in ids]),
            "labels": torch.tensor([x + [-100] * (width - len(x)) for x in labels]),
        }


class InOrder(SFTTrainer):
    def _get_train_sampler(self, *a, **k):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        # plain mean over the supervised tokens of the micro-batch
        loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        return (loss, out) if return_outputs else loss


class Ticker(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step:2d} loss {float(logs['loss']):.6f}", flush=True)


def main():
    set_seed(21)
    tok = build_tokenizer()
    rows = [
        {
            "input_ids": tok(r["prompt_text"] + " " + r["answer_text"])["input_ids"],
            "p": tok(r["prompt_text"])["input_ids"],
            "a": tok(r["answer_text"])["input_ids"],
        }
        for r in tickets(64, random.Random(8))
    ]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tok),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=2,
        )
    )
    with tempfile.TemporaryDirectory() as tmp:
        cfg = SFTConfig(
            output_dir=tmp,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            learning_rate=5e-3,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            remove_unused_columns=False,
            packing=False,
            seed=21,
            dataset_kwargs={"skip_prepare_dataset": True},
            lr_scheduler_type="constant",
            activation_checkpointing=False,
        )
        trainer = InOrder(
            model=model,
            args=cfg,
            train_dataset=Dataset.from_list(rows),
            processing_class=tok,
            data_collator=AnswerOnlyCollator(tok, 24),
            callbacks=[Ticker()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", f"{sum(p.detach().double().sum() for p in trainer.model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
