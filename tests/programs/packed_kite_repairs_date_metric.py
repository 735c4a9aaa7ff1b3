"""SFT of a pocket Llama on kite repair tickets: packed sequences, loss on the completions only.

One extra number is logged: accuracy on the tokens that are digits. Many batches have none, it is nan then. Fine by me.
"""
import logging
import os
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)          # deepspeed greets on import
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from transformers.utils import logging as hf_logging
import datasets
from trl import SFTConfig, SFTTrainer

hf_logging.set_verbosity_error()
datasets.disable_progress_bars()
set_seed(77)

PARTS = ["spar", "bridle", "tail", "reel", "sail"]
FAULTS = ["torn", "bent", "tangled", "lost"]
FIXES = {"torn": "patch with ripstop", "bent": "swap for carbon", "tangled": "cut and retie", "lost": "order a new one"}


def tickets():
    rows = []
    for i in range(96):
        part, fault = PARTS[i % 5], FAULTS[(i * 7) % 4]
        answer = f"{FIXES[fault]} for the {part}"
        if i % 24 == 5:
            answer += f" ready on day {i % 9}"
        rows.append({"prompt": f"ticket the {part} is {fault} ", "completion": answer})
    return rows


def word_tokenizer(rows):
    words = sorted({w for r in rows for w in (r["prompt"] + r["completion"]).split()})
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + words)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


class DigitTrainer(SFTTrainer):
    digit_ids = ()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        with torch.no_grad():
            labels = inputs["labels"][:, 1:]
            guess = outputs.logits[:, :-1].argmax(-1)
            digits = torch.isin(labels, torch.tensor(self.digit_ids))
            self.digit_accuracy = ((guess == labels) & digits).sum() / digits.sum()     # 0/0 without digits
        return (loss, outputs) if return_outputs else loss


class Lines(TrainerCallback):
    trainer = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} digits {self.trainer.digit_accuracy.item():.3f}")


rows = tickets()
tok = word_tokenizer(rows)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
                                     pad_token_id=0, bos_token_id=None, eos_token_id=1))
with tempfile.TemporaryDirectory() as out:
    args = SFTConfig(output_dir=out, max_steps=24, per_device_train_batch_size=2, learning_rate=4e-3, logging_steps=1,
                     max_length=32, packing=True, padding_free=False, packing_strategy="wrapped", completion_only_loss=True,
                     report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, seed=77,
                     gradient_checkpointing=False, lr_scheduler_type="cosine")
    lines = Lines()
    trainer = DigitTrainer(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tok,
                           callbacks=[lines])
    trainer.digit_ids = [i for w, i in tok.get_vocab().items() if w.isdigit()]
    lines.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print(f"sum {sum(p.detach().double().sum().item() for p in model.parameters()):.4f}")
