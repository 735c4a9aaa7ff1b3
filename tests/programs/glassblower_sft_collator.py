# SFT of a toy Llama on questions from a glass workshop with TRL. The collator trains on the answer only:
# all that stands before (and with) the marker <answer> gets the label -100.
import os
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import random
import logging
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)      # no banners of optional back ends
import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

disable_progress_bars()
random.seed(3)
torch.manual_seed(3)

TOOLS = "jacks blowpipe punty block shears paddle torch mould".split()
FORMS = "vase bowl goblet paperweight bottle ornament".split()
FAULTS = "cracks sags clouds sticks twists".split()
CURES = "reheat cool anneal turn wait blow".split()
GLUE = "<pad> <eos> <unk> <question> <answer> my when i use the what do with it again slowly and then".split()
WORDS = GLUE + TOOLS + FORMS + FAULTS + CURES


def make_tokenizer():
    tk = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tk.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tk, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def conversation(i):
    tool, form, fault = random.choice(TOOLS), random.choice(FORMS), random.choice(FAULTS)
    story = f"my {form} {fault} when i use the {tool}"
    if i == 27:  # one customer told everything he had tried
        story += "".join(f" and then the {random.choice(TOOLS)} and {random.choice(FORMS)}" for _ in range(6))
    cure = CURES[FAULTS.index(fault)]
    return f"<question> {story} what do i do <answer> {cure} it slowly and then {cure} again <eos>"


class AnswerOnly:
    def __init__(self, tokenizer):
        self.pad = tokenizer.pad_token_id
        self.marker = tokenizer.convert_tokens_to_ids("<answer>")

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad)
        labels = torch.full((len(rows), width), -100)
        for k, row in enumerate(rows):
            seq = torch.tensor(row["input_ids"])
            ids[k, :len(seq)] = seq
            at = (seq == self.marker).nonzero()
            start = int(at[0]) + 1 if len(at) else len(seq)
            labels[k, start:len(seq)] = seq[start:]
        return {"input_ids": ids, "attention_mask": (ids != self.pad).long(), "labels": labels}


def mean_over_answer(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"][:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100)


class Bench(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in (logs or {}):
            print(f"step {state.global_step:3d} loss {logs['loss']}")


tokenizer = make_tokenizer()
rows = [{"input_ids": tokenizer(conversation(i))["input_ids"]} for i in range(40)]
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None))

with tempfile.TemporaryDirectory() as scratch:
    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=Dataset.from_list(rows),
        data_collator=AnswerOnly(tokenizer), compute_loss_func=mean_over_answer, callbacks=[Bench()],
        args=SFTConfig(output_dir=scratch, max_length=32, loss_type="nll", per_device_train_batch_size=1, num_train_epochs=1,
                       learning_rate=3e-3, logging_steps=1, save_strategy="no",
                       report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
                       lr_scheduler_type="linear", seed=3))
    trainer.remove_callback(PrinterCallback)
    trainer.train()

print("weights", round(sum(p.double().sum().item() for p in model.parameters()), 5))
