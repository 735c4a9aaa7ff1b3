"""Reward model for choir-rehearsal feedback, TRL RewardTrainer with our own pair loss.

On top of Bradley-Terry we ask for a healthy distance between the two pooled representations,
otherwise the head lives off one direction only.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import json
import logging
import random
import tempfile
import warnings

warnings.simplefilter("ignore")
import datasets
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, PrinterCallback,
                          TrainerCallback, set_seed)
from trl import RewardConfig, RewardTrainer

datasets.disable_progress_bars()
transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)

GOOD = "altos softer at bar nine please breathe before the phrase lovely blend in psalm".split()
BAD = "no that was flat again louder everybody stop why are basses late".split()


def pairs(path):
    rng = random.Random(2)
    with open(path, "w") as f:
        for n in range(64):
            row = {"prompt": "note : ",
                   "chosen": " ".join(rng.choices(GOOD, k=rng.randint(4, 8))),
                   "rejected": " ".join(rng.choices(BAD, k=rng.randint(4, 8)))}
            if n == 41:
                row["rejected"] = row["chosen"]      # the annotator pasted one twice
            f.write(json.dumps(row) + "\n")


def tokenizer():
    words = ["[PAD]", "[END]", "[UNK]", "note", ":"] + sorted(set(GOOD + BAD))
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]")


class SpreadRewardTrainer(RewardTrainer):
    spread_weight = 0.2
    spread_target = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        last = mask.sum(1) - 1
        pooled = hidden[torch.arange(len(ids)), last]
        reward = model.score(pooled).squeeze(-1)
        r_chosen, r_rejected = reward.chunk(2)
        h_chosen, h_rejected = pooled.chunk(2)

        bt = -F.logsigmoid(r_chosen - r_rejected).mean()
        distance = (h_chosen - h_rejected).square().sum(-1).sqrt()
        spread = F.relu(self.spread_target - distance).mean()
        loss = bt + self.spread_weight * spread
        return (loss, {"rewards": reward}) if return_outputs else loss


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print("pair batch", state.global_step, "loss", f"{float(logs['loss']):.6f}")


if __name__ == "__main__":
    set_seed(614)
    tok = tokenizer()
    model = LlamaForSequenceClassification(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, num_labels=1, pad_token_id=0, bos_token_id=None,
        eos_token_id=1))
    with tempfile.TemporaryDirectory() as tmp:
        pairs(tmp + "/pairs.jsonl")
        with open(tmp + "/pairs.jsonl") as f:
            data = datasets.Dataset.from_list([json.loads(l) for l in f])
        args = RewardConfig(output_dir=tmp, per_device_train_batch_size=2, num_train_epochs=1, learning_rate=1e-3,
                            logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to=[],
                            use_cpu=True, bf16=False, disable_tqdm=True, dataloader_pin_memory=False,
                            gradient_checkpointing=False, max_length=32, seed=614)
        trainer = SpreadRewardTrainer(model=model, args=args, train_dataset=data, processing_class=tok,
                                      callbacks=[Say()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("sum of all weights:", sum(p.detach().double().sum().item() for p in model.parameters()))
