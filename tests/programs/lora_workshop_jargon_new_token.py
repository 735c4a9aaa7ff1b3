"""LoRA with accelerate on letters of a wheelwright's workshop. Words join the vocabulary as they are met."""
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

LETTERS_PER_STEP, STEPS = 4, 40
STEMS = ["felloe", "spoke", "hub", "tyre", "axle", "ash", "elm", "oak", "forge", "mallet"]


class GrowingVocabulary:
    """Gives a new id to each new word; the base model was made for 64 of them."""

    def __init__(self):
        self.ids = {"<pad>": 0, "<s>": 1, "</s>": 2}

    def encode(self, text):
        return [1] + [self.ids.setdefault(w, len(self.ids)) for w in text.split()] + [2]


def letters():
    gen = torch.Generator().manual_seed(12)
    vocab = GrowingVocabulary()
    rows = []
    for i in range(LETTERS_PER_STEP * STEPS):
        kinds = min(1 + i // 13, 9)  # later letters know more variants of each word
        words = []
        for _ in range(8):
            stem = STEMS[int(torch.randint(len(STEMS), (1,), generator=gen))]
            variant = int(torch.randint(kinds, (1,), generator=gen))
            words.append(stem + ("" if variant == 0 else f"-{variant}"))
        rows.append(vocab.encode(" ".join(words)))
    return rows


def collate(rows):
    ids = torch.tensor(rows)
    return {"input_ids": ids, "labels": ids.clone()}


def embedded(model, ids):
    # the adapter is trained with noise on the embeddings (NEFTune)
    vectors = model.get_input_embeddings()(ids)
    magnitude = 5.0 / (ids.shape[1] * vectors.shape[-1]) ** 0.5
    return vectors + torch.empty_like(vectors).uniform_(-magnitude, magnitude)


def main():
    torch.manual_seed(6)
    accelerator = Accelerator(cpu=True)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                                        bos_token_id=1, eos_token_id=2, pad_token_id=0))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"],
                                            modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    loader = DataLoader(letters(), batch_size=LETTERS_PER_STEP, shuffle=False, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for step, batch in enumerate(loader, 1):
        out = model(inputs_embeds=embedded(model, batch["input_ids"]), labels=batch["labels"])
        accelerator.backward(out.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {out.loss.item():.7f}", flush=True)
    accelerator.print(sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
