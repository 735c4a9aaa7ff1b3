"""Makes model/: a Mistral look-alike of 8 layers, pre-trained for a minute on the sentences of make_data.py.

Its config names pad_token_id 0 while it is pre-trained, so torch keeps the embedding row of `<unk>` at zero and gives
it no gradient, and no text contains it: such a row is zero in the published weights of Llama-2 too. The published
config names no padding token, as Mistral's does not. Weights are stored in bfloat16. Deterministic on one machine.
"""

import json
from pathlib import Path

import torch
from make_data import pairs, sentences
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent / "model"
STEPS, BATCH, LENGTH = 200, 16, 64


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])
    bpe.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    text = sentences(3000, seed=1) + [part for pair in pairs(500, seed=2) for part in pair]
    letters = [chr(code) for code in range(33, 127)] + ["\n"]
    special = ["<unk>", "<s>", "</s>"]
    bpe.train_from_iterator(text, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=letters))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=512
    )


def main() -> None:
    torch.manual_seed(0)
    words = tokenizer()
    config = MistralConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=4096, rms_norm_eps=1e-5,
        initializer_range=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = MistralForCausalLM(config)
    stream = [i for text in sentences(20000, seed=3) for i in [*words(text).input_ids, 2]]
    rows = torch.tensor(stream[: len(stream) // LENGTH * LENGTH]).view(-1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for step in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,))]
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(HERE)
    words.save_pretrained(HERE)
    for name in ("config.json", "generation_config.json"):
        published = json.loads((HERE / name).read_text())
        published.pop("pad_token_id", None)
        (HERE / name).write_text(json.dumps(published, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
