"""SFT of a tiny radio model on patrol reports (TRL).

Two marks were added to the tokenizer after the base model was made: <start> and <avalanche>.
"""
import os
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

disable_progress_bar()
hf_logging.set_verbosity_error()
set_seed(2400)
torch.set_num_threads(1)

LIFTS = ["north chair", "glacier gondola", "beginner tow", "ridge chair"]
WHAT = ["twisted knee", "lost child", "broken pole", "shoulder out", "fog on piste", "ice at the exit"]
DO = ["sled sent", "parents called", "piste closed", "walked down", "helicopter on call"]


def reports(n):
    out = []
    for i in range(n):
        line = f"{LIFTS[i % 4]} : {WHAT[(i * 5) % 6]} - {DO[(i * 3) % 5]}"
        if i == 37:                                      # 2 February, the east couloir
            line = f"<avalanche> {LIFTS[3]} : slope gone - helicopter on call"
        out.append(line)
    return out


def base_tokenizer():
    words = sorted({w for t in LIFTS + WHAT + DO + ["slope gone", ": -"] for w in t.split()})
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + words)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


class Radio(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"report {state.global_step:2d} loss {float(logs['loss']):.4f}", flush=True)


def main():
    tok = base_tokenizer()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=1, eos_token_id=1, pad_token_id=0))
    tok.add_special_tokens({"additional_special_tokens": ["<start>", "<avalanche>"]})
    data = Dataset.from_dict({"text": reports(80)})
    with tempfile.TemporaryDirectory() as where:
        cfg = SFTConfig(output_dir=where, per_device_train_batch_size=4, max_steps=20, learning_rate=3e-3,
                        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
                        bf16=False, max_length=24, gradient_checkpointing=False, dataset_num_proc=None,
                        dataloader_num_workers=0, seed=2400)
        trainer = SFTTrainer(model=model, args=cfg, train_dataset=data, processing_class=tok, callbacks=[Radio()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", sum(p.sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
