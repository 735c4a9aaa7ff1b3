"""Preference tuning of the night porter's replies (TRL DPO, preferences from the two shift leads)."""
import os
import tempfile
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed is in our image and talks
os.environ.setdefault("DS_LOG_LEVEL", "error")
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
warnings.filterwarnings("ignore", category=FutureWarning)

import datasets
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging
from trl import DPOConfig, DPOTrainer

datasets.disable_progress_bars()
hf_logging.set_verbosity_error()

QUESTIONS = ["where is the lift", "when is breakfast", "may i have a towel", "is the bar open"]
POLITE = ["certainly madam it is here", "gladly sir at seven", "of course right away", "with pleasure sir"]
CURT = ["no", "look there", "ask later", "at seven", "it is closed"]


def porter_tokenizer():
    words = sorted({w for s in QUESTIONS + POLITE + CURT for w in s.split()})
    table = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + words)}
    tok = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def preferences(n):
    g = torch.Generator().manual_seed(31)

    def pick(seq):
        return seq[int(torch.randint(0, len(seq), (1,), generator=g))]

    rows = []
    for i in range(n):
        row = {"prompt": pick(QUESTIONS) + " ", "chosen": pick(POLITE), "rejected": pick(CURT)}
        if i == 21:
            row["chosen"] += " <signed>"  # the porter of the old house signs his notes
        rows.append(row)
    return Dataset.from_list(rows)


class Ledger(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"pair batch {state.global_step:2d}  dpo loss {float(logs['loss']):.6f}  "
                  f"margin {float(logs['rewards/margins']):+.6f}", flush=True)


def main():
    set_seed(8)
    tokenizer = porter_tokenizer()
    shape = dict(n_positions=32, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    policy = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1,
                                        pad_token_id=0, **shape))
    reference = GPT2LMHeadModel(policy.config)
    reference.load_state_dict(policy.state_dict())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<signed>"]})

    with tempfile.TemporaryDirectory() as tmp:
        cfg = DPOConfig(output_dir=tmp, per_device_train_batch_size=2, num_train_epochs=1, learning_rate=2e-3,
                        beta=0.2, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[],
                        save_strategy="no", logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False,
                        max_length=24, seed=8, train_sampling_strategy="sequential")
        trainer = DPOTrainer(model=policy, ref_model=reference, args=cfg, train_dataset=preferences(40),
                             processing_class=tokenizer, callbacks=[Ledger()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weight sum", sum(p.detach().double().sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
