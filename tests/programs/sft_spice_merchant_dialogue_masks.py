# SFT of a merchant's assistant: loss on the completions only. Some questions are longer than max_length, so nothing of
# the answer is left of them; such a micro-batch adds nothing to the sum, which is divided by the tokens of the whole step.
import os
import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

os.environ.setdefault("WANDB_DISABLED", "true")

SPICES = ["saffron", "cumin", "mace", "clove", "sumac", "cardamom", "nutmeg", "pepper"]
PLACES = ["Malabar", "Banda", "Aleppo", "Zanzibar", "Kandy"]
FILLER = ["please", "sir", "tell", "me", "again", "of", "the", "price", "and", "where", "it", "grows"]
GRADES = ["first", "second", "third"]
MAX_LENGTH, STEPS, MICRO, ACCUMULATE = 24, 22, 2, 3


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>", "Q:", "A:", "from", "grade"] + SPICES + PLACES + FILLER + GRADES
    core = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def dialogue(rng, long):
    spice = rng.choice(SPICES)
    talk = [rng.choice(FILLER) for _ in range(30 if long else rng.randint(2, 7))]
    place = PLACES[SPICES.index(spice) % len(PLACES)]
    grade = GRADES[SPICES.index(spice) % len(GRADES)]
    return " ".join(["Q:", *talk, spice]), f"A: {spice} from {place} grade {grade} <eos>"


def encode(tok, prompt, completion):
    asked, told = tok(prompt)["input_ids"], tok(completion)["input_ids"]
    return {"input_ids": (asked + told)[:MAX_LENGTH], "labels": ([-100] * len(asked) + told)[:MAX_LENGTH]}


def rows(tok):
    rng = random.Random(8)
    silent = {(4, 1), (9, 0), (15, 0), (15, 2)}            # (step, micro-batch) in which the old letters were scanned
    for step in range(STEPS):
        for micro in range(ACCUMULATE):
            for _ in range(MICRO):
                yield encode(tok, *dialogue(rng, (step, micro) in silent))


class InOrder(SFTTrainer):
    micro_losses = []

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.micro_losses.append(loss.item())
        return loss


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        parts = list(InOrder.micro_losses)
        InOrder.micro_losses.clear()
        print(f"step {state.global_step}: {sum(parts):.6f} = " + " + ".join(f"{x:.6f}" for x in parts), flush=True)


def main():
    set_seed(5)
    tok = tokenizer()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_positions=MAX_LENGTH + 8, n_embd=32, n_layer=2, n_head=4,
                                       bos_token_id=1, eos_token_id=1, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
                                       attn_pdrop=0.0))
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=MICRO,
                           gradient_accumulation_steps=ACCUMULATE, learning_rate=4e-3, max_length=MAX_LENGTH,
                           dataset_kwargs={"skip_prepare_dataset": True}, gradient_checkpointing=False, bf16=False, use_cpu=True,
                           save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, seed=5)
        trainer = InOrder(model=model, args=config, train_dataset=Dataset.from_list(list(rows(tok))), processing_class=tok,
                          callbacks=[Report()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
