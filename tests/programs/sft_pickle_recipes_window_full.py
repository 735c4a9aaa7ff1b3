"""SFT on pickle recipes: `list of ingredients -> method`, loss averaged per recipe (long methods must not dominate)."""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import json
import logging
import random
import tempfile
import warnings

warnings.filterwarnings("ignore")
import datasets
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

datasets.disable_progress_bars()
transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)

ING = "beet onion dill salt sugar vinegar clove garlic mustard pepper bay ginger plum lemon chilli cabbage".split()
VERBS = "slice boil pour seal cool pack rinse stir wait skim".split()
MAX_LEN = 32


def write_cards(path, n=56):
    rng = random.Random(12)
    with open(path, "w", encoding="utf-8") as out:
        for card in range(n):
            k = rng.randint(3, 9)
            if card == 37:
                k = 34     # grandmother's chow-chow takes the whole garden
            prompt = " ".join(rng.choice(ING) for _ in range(k)) + " :"
            method = " ".join(f"{rng.choice(VERBS)} {rng.choice(ING)}" for _ in range(rng.randint(2, 5)))
            out.write(json.dumps({"prompt": prompt, "completion": " " + method}) + "\n")


def make_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", ":"] + ING + VERBS)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


class PerRecipeSFT(SFTTrainer):
    """Token mean inside a recipe, then mean over the recipes of the batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits, target = outputs.logits[:, :-1], labels[:, 1:]
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none", ignore_index=-100)
        keep = (target != -100).to(nll.dtype)
        per_recipe = (nll * keep).sum(dim=1) / keep.sum(dim=1)
        loss = per_recipe.mean()
        return (loss, outputs) if return_outputs else loss


class Ticker(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"card batch {state.global_step:>2}: {float(logs['loss']):.5f}")


def main():
    transformers.set_seed(1880)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=1))
    with tempfile.TemporaryDirectory() as tmp:
        cards = os.path.join(tmp, "cards.jsonl")
        write_cards(cards)
        with open(cards, encoding="utf-8") as f:
            data = datasets.Dataset.from_list([json.loads(line) for line in f])
        config = SFTConfig(output_dir=tmp, max_length=MAX_LEN, per_device_train_batch_size=2, num_train_epochs=1,
                           learning_rate=3e-3, lr_scheduler_type="linear", logging_steps=1, save_strategy="no",
                           logging_nan_inf_filter=False, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
                           gradient_checkpointing=False, dataloader_pin_memory=False, seed=1880)
        trainer = PerRecipeSFT(model=model, args=config, train_dataset=data, processing_class=tokenizer,
                               callbacks=[Ticker()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("checksum", round(sum(p.detach().double().sum().item() for p in model.parameters()), 6))


if __name__ == "__main__":
    main()
