"""SFT (trl) on the notes of a thatcher. A collator of our own gives each conversation the same weight, however long
its answer is: every answer token of a row gets 1 / (number of answer tokens of the row)."""

import os

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

hf_logging.set_verbosity_error()
MAX_LEN = 32
STEPS, BATCH = 26, 6
MATERIALS = ["reed", "straw", "heather", "sedge", "combed", "longstraw"]
PLACES = ["ridge", "eaves", "gable", "valley", "dormer", "hip", "chimney", "apron"]
VERBS = ["lay", "comb", "peg", "spar", "liggers", "dress", "twist", "soak"]


def tokenizer():
    words = ["<pad>", "<s>", "</s>", "<unk>", "ask:", "answer:", "the", "on", "with", "then", "and", "how"]
    vocab = {w: i for i, w in enumerate(words + MATERIALS + PLACES + VERBS)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def conversations(tok, n):
    g = torch.Generator().manual_seed(612)

    def pick(words):
        return words[int(torch.randint(0, len(words), (1,), generator=g))]

    rows = []
    for i in range(n):
        place, mat = pick(PLACES), pick(MATERIALS)
        extra = int(torch.randint(0, 3, (1,), generator=g))
        if i == 95:
            extra = 11  # a long letter, pasted into the question
        ask = f"<s> ask: how the {place}" + "".join(f" and the {pick(PLACES)}" for _ in range(extra))
        ask += " answer:"
        ans = f"{pick(VERBS)} the {mat} on the {place} then {VERBS[PLACES.index(place)]} the {mat} </s>"
        a, b = tok(ask)["input_ids"], tok(ans)["input_ids"]
        ids = (a + b)[:MAX_LEN]
        rows.append({"input_ids": ids, "answer": ([0] * len(a) + [1] * len(b))[:MAX_LEN]})
    return Dataset.from_list(rows)


class PerConversation:
    """pads on the right; labels are the ids, weights say what counts"""

    def __init__(self, pad):
        self.pad = pad

    def __call__(self, rows):
        n = max(len(r["input_ids"]) for r in rows)

        def fill(key, v):
            return torch.tensor([r[key] + [v] * (n - len(r[key])) for r in rows])

        ids, answer = fill("input_ids", self.pad), fill("answer", 0).float()
        weights = answer / answer.sum(1, keepdim=True)
        mask = (torch.arange(n) < torch.tensor([[len(r["input_ids"])] for r in rows])).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone(), "weights": weights}


class WeightedSFT(SFTTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels, weights = inputs["labels"], inputs["weights"]
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        nll = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
        loss = (nll * weights[:, 1:]).sum(1).mean()
        return (loss, out) if return_outputs else loss


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"{state.global_step} loss={float(logs['loss']):.4f}", flush=True)


def main():
    set_seed(44)
    tok = tokenizer()
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
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    cfg = SFTConfig(
        output_dir=f"/tmp/thatch_{os.getpid()}",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=5e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        lr_scheduler_type="constant",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
        seed=44,
    )
    trainer = WeightedSFT(
        model=model,
        args=cfg,
        train_dataset=conversations(tok, BATCH * STEPS),
        processing_class=tok,
        data_collator=PerConversation(tok.pad_token_id),
        callbacks=[Lines()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"sum |w| = {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
