"""Supervised fine-tuning (TRL) of a tiny decoder with LoRA on island sagas.

The adapters of the upper layer sleep for the first dozen of steps.  The second half of the corpus is told in another
order of words (the islanders' northern dialect), which puts the loss up again on purpose.
"""
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

WHO = "Asa Bjorn Gudrun Hild Ivar Ketil Ragna Sten".split()
DID = "built burned sold found carried hid".split()
WHAT = "the_ship the_hall the_axe the_sail the_cloak the_horse".split()
WHERE = "at_dawn in_winter by_the_ford under_oath over_sea".split()
STEPS, BATCH = 40, 8


def sagas(count):
    rng = random.Random(90)
    for i in range(count):
        lines = []
        for _ in range(rng.randint(1, 4)):
            words = [rng.choice(WHO), rng.choice(DID), rng.choice(WHAT), rng.choice(WHERE)]
            lines += words if i < count // 2 else words[::-1]
        # some prompts are all there is of a saga: the page behind is lost
        lost = i % 37 == 20
        yield {"prompt": "tell " + " ".join(lines) + " :", "completion": " <end>" if lost else " " + " ".join(lines) + " <end>"}


def make_tokenizer():
    words = ["<pad>", "<unk>", "<end>", "tell", ":"] + WHO + DID + WHAT + WHERE
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<end>")


class Waker(TrainerCallback):
    """Upper adapters asleep until step 12; prints a line for each step."""

    def __init__(self, model, until=12):
        self.upper = [p for n, p in model.named_parameters() if "lora_" in n and ".layers.1." in n]
        self.until = until

    def on_train_begin(self, args, state, control, **kwargs):
        for p in self.upper:
            p.requires_grad_(False)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.until:
            for p in self.upper:
                p.requires_grad_(True)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        awake = [p.grad for p in self.upper if p.requires_grad and p.grad is not None]
        self.share = torch.tensor([g.norm() for g in awake]).mean().item()       # nan while all of them sleep

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(f"step {state.global_step:2d} loss {logs['loss']:.6f} upper adapters {self.share:.5f}", flush=True)


class InOrder(SFTTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def main():
    set_seed(17)
    tokenizer = make_tokenizer()
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         pad_token_id=0, eos_token_id=2, bos_token_id=None)
    model = LlamaForCausalLM(config)
    lora = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
                      modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=2e-2,
                         lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none", seed=17,
                         disable_tqdm=True, use_cpu=True, bf16=False, max_length=48, gradient_checkpointing=False)
        trainer = InOrder(model=model, args=args, train_dataset=Dataset.from_list(list(sagas(STEPS * BATCH))),
                          processing_class=tokenizer, peft_config=lora)
        trainer.add_callback(Waker(trainer.model))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(sum(p.detach().abs().sum().item() for p in trainer.model.parameters()))


if __name__ == "__main__":
    main()
