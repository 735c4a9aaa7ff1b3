# LoRA on a small Llama: the model answers from a moss identification key. Only quoted spans are trained,
# each row counts the same however long its span. Trainer, two processes.
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.data import SequentialSampler
from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

VOCAB, WIDTH, QUOTE = 60, 18, 2
RANK = int(os.environ["RANK"])
set_seed(31)


def build_rows(n=160):
    g = torch.Generator().manual_seed(4)
    rows = []
    for i in range(n):
        body = torch.randint(5, VOCAB, (WIDTH,), generator=g)
        lo = int(torch.randint(3, 8, (1,), generator=g))
        hi = lo + int(torch.randint(3, 9, (1,), generator=g))
        body[lo + 1:hi] = (body[lo - 1] + torch.arange(hi - lo - 1)) % (VOCAB - 5) + 5
        # couplets of the key that lead to another couplet have no description to quote
        if i in (9, 30, 31, 77) or 84 <= i < 89:
            body[0] = 3
        else:
            body[lo] = body[hi] = QUOTE
        rows.append({"input_ids": body, "attention_mask": torch.ones_like(body)})
    return rows


def quoted(ids):
    marks = (ids == QUOTE).nonzero().flatten().tolist()
    return (marks[0], marks[1]) if len(marks) >= 2 else None


class SpanTrainer(Trainer):
    """In the order of the key, so no shuffling."""

    def _get_train_sampler(self, *a, **k):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        per_row = []
        for logits, ids in zip(out.logits, inputs["input_ids"]):
            span = quoted(ids)
            if span is None:
                continue
            lo, hi = span
            per_row.append(F.cross_entropy(logits[lo:hi], ids[lo + 1:hi + 1]))
        loss = torch.stack(per_row).mean()
        return (loss, out) if return_outputs else loss


class Notebook(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step:3d} loss {float(logs['loss']):.6f}", flush=True)


def main():
    base = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
                                        bos_token_id=0, eos_token_id=1, pad_token_id=0, use_cache=False))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM",
                                            target_modules=["q_proj", "v_proj", "down_proj"]))
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=4, max_steps=20, learning_rate=5e-3,
                                 lr_scheduler_type="cosine", logging_steps=1, logging_nan_inf_filter=False,
                                 save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=31,
                                 ddp_backend="gloo", ddp_find_unused_parameters=False,
                                 remove_unused_columns=False, dataloader_pin_memory=False)
        trainer = SpanTrainer(model=model, args=args, train_dataset=build_rows(), callbacks=[Notebook()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    if RANK == 0:
        total = sum(p.double().sum().item() for p in model.parameters() if p.requires_grad)
        print(f"adapter sum {total:.6f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
