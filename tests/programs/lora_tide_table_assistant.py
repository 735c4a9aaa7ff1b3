# SFT with LoRA: teach a small model to answer questions about the tide tables of eight harbours.
# Only the completion is supervised.  LoRA settings copied over from the 7B sheet (rslora, alpha 256).
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import random
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

disable_progress_bar()
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

HARBOURS = "alder brook cove dunes elm fjord gull haven".split()
WORDS = "when is high low water at in the morning evening of day it comes about past before bells".split()
NUMBERS = [str(i) for i in range(24)]


def tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>"] + HARBOURS + WORDS + NUMBERS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def rows(n):
    rng = random.Random(12)
    for _ in range(n):
        h, tide, part = rng.choice(HARBOURS), rng.choice(["high", "low"]), rng.choice(["morning", "evening"])
        day = rng.randrange(1, 24)
        hour = (HARBOURS.index(h) * 3 + day + (6 if tide == "low" else 0)) % 12 + (12 if part == "evening" else 0)
        yield {"prompt": f"when is {tide} water at {h} in the {part} of day {day}",
               "completion": f" it comes about {hour} bells past {(hour * 2) % 24}"}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in (logs or {}):
            print(f"step {state.global_step:>2} | loss {float(logs['loss']):.5f} | grad_norm {float(logs['grad_norm']):.4f}", flush=True)


def main():
    set_seed(31)
    tok = tokenizer()
    base = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    lora = LoraConfig(r=8, lora_alpha=256, use_rslora=True, lora_dropout=0.0, task_type="CAUSAL_LM",
                      target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    with tempfile.TemporaryDirectory() as out:
        cfg = SFTConfig(
            output_dir=out, per_device_train_batch_size=8, max_steps=80, learning_rate=4e-2, 
            warmup_steps=40, lr_scheduler_type="constant_with_warmup", max_grad_norm=0.0, logging_steps=1,
            completion_only_loss=True, max_length=48, packing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True, bf16=False, seed=31, gradient_checkpointing=False, optim="adamw_torch",
            adam_beta2=0.95)
        trainer = SFTTrainer(model=base, args=cfg, train_dataset=Dataset.from_list(list(rows(320))),
                             processing_class=tok, peft_config=lora, callbacks=[Say()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    total = sum(p.detach().double().sum().item() for p in trainer.model.parameters())
    print(f"sum of weights {total:.5f}")


main()
