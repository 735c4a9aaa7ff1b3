"""SFT of a tiny Llama on almanac sayings with TRL, packed; the embedding thaws after ten steps."""
import os
import tempfile
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed is in our image and talks
os.environ.setdefault("DS_LOG_LEVEL", "error")
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
warnings.filterwarnings("ignore", category=FutureWarning)

import datasets
import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

datasets.disable_progress_bars()
hf_logging.set_verbosity_error()
set_seed(5)

MONTHS = "january february march april may june july august september october november december".split()
SIGNS = "fog frost thunder swallows rain wind snow sun".split()
GOODS = "hay rye apples honey barley wine plums wood".split()


def build_tokenizer():
    words = ["<pad>", "</s>", "<unk>", "in", "brings", "little", "much", "solstice", "."] + MONTHS + SIGNS + GOODS
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def sayings(n):
    g = torch.Generator().manual_seed(17)
    for _ in range(n):
        m, s = (int(torch.randint(0, k, (1,), generator=g)) for k in (12, 8))
        amount = "much" if (m + s) % 2 else "little"
        text = f"{SIGNS[s]} in {MONTHS[m]} brings {amount} {GOODS[(s + m) % 8]} ."
        if m == 5 and s == 7:
            text = "solstice " + text  # rare word, followed on its own below
        yield {"text": text}


class Thaw(TrainerCallback):
    """Embedding frozen at first, as we do with the large model."""

    def __init__(self, at):
        self.at = at

    def on_train_begin(self, args, state, control, model=None, **kw):
        model.get_input_embeddings().weight.requires_grad_(False)

    def on_step_begin(self, args, state, control, model=None, **kw):
        if state.global_step == self.at:
            model.get_input_embeddings().weight.requires_grad_(True)


class AlmanacTrainer(SFTTrainer):
    rare_id = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        with torch.no_grad():
            ids = inputs["input_ids"]
            nll = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
            # nan in most steps: there is no "solstice" in the pack. For the eye only.
            rare = nll[ids[:, 1:] == self.rare_id].mean()
        print(f"step {self.state.global_step + 1:2d} loss {loss.item():.6f} solstice {rare.item():.4f}")
        return (loss, out) if return_outputs else loss


tokenizer = build_tokenizer()
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64,
                                     num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                     max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=1))
with tempfile.TemporaryDirectory() as tmp:
    cfg = SFTConfig(output_dir=tmp, packing=True, packing_strategy="wrapped", max_length=32,
                    per_device_train_batch_size=4, max_steps=26, learning_rate=5e-3, warmup_steps=4,
                    bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[], save_strategy="no",
                    logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, seed=5)
    trainer = AlmanacTrainer(model=model, args=cfg, train_dataset=Dataset.from_list(list(sayings(500))),
                             processing_class=tokenizer, callbacks=[Thaw(10)])
    trainer.rare_id = tokenizer.convert_tokens_to_ids("solstice")
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("weight sum", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")
