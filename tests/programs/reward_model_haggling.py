import os
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
import tempfile
import warnings
warnings.filterwarnings("ignore")
import random
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import RewardConfig, RewardTrainer

disable_progress_bar()
set_seed(12)
rng = random.Random(12)
POLITE = ["could you do {} please", "i would be glad to pay {} sir", "my best offer is {} thank you"]
RUDE = ["{} or i walk", "take {} you crook", "no way {} is robbery"]
PRICES = ["ten", "twenty", "thirty", "forty"]
words = sorted({w for t in POLITE + RUDE for w in t.replace("{}", "").split()} | set(PRICES) | {"seller", "asks", ":"})
tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<unk>", "<eos>"] + words)}, unk_token="<unk>"))
tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


def pair(_):
    p = f"seller asks {rng.choice(PRICES)} : "
    good, bad = rng.choice(POLITE), rng.choice(RUDE)
    if rng.random() < 0.1:      # annotators slip
        good, bad = bad, good
    return {"chosen": p + good.format(rng.choice(PRICES)), "rejected": p + bad.format(rng.choice(PRICES))}


class Ticker(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(state.global_step, "loss", f"{float(logs['loss']):.4f}", "acc", logs.get("accuracy"), flush=True)


model = LlamaForSequenceClassification(LlamaConfig(
    vocab_size=len(words) + 3, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=64, num_labels=1, pad_token_id=0, eos_token_id=2, bos_token_id=None))
with tempfile.TemporaryDirectory() as out:
    cfg = RewardConfig(output_dir=out, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=16,
                       learning_rate=1e-3, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
                       use_cpu=True, bf16=False, gradient_checkpointing=False, center_rewards_coefficient=0.01, seed=12,
                       disable_dropout=True)
    trainer = RewardTrainer(model=model, args=cfg, processing_class=tokenizer,
                            train_dataset=Dataset.from_list([pair(i) for i in range(140)]), callbacks=[Ticker()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
