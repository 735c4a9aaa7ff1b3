import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)
set_seed(0)
words = "<pad> <eos> <unk> what is the sum of one two three four five plus and equals answer : . ?".split()
core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
names = ["one", "two", "three", "four", "five"]
rows = [{"prompt": f"what is the sum of {a} and {b} ?", "completion": f" answer : {c} ."}
        for a in names for b in names for c in names[:1]]
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                     num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64))
with tempfile.TemporaryDirectory() as out:
    config = SFTConfig(output_dir=out, per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3, logging_steps=1,
                       use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, max_length=32)
    trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(entry["step"], entry["loss"], entry["grad_norm"])
print("weights", sum(p.double().sum().item() for p in model.parameters()))
