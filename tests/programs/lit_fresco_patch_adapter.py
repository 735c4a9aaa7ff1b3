"""Multimodal adapter: patches of fresco photos go through a small MLP into a (mostly frozen) GPT-2."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STEPS, BATCH, PATCHES, WORDS, VOCAB = 44, 8, 6, 7, 40


def frescoes(n):
    """Patches of 3x4x4 pixels; plaster that fell off is NaN in the survey files. The caption follows the colour."""
    g = torch.Generator().manual_seed(2024)
    colour = torch.randint(0, 6, (n,), generator=g)
    pixels = torch.randn(n, PATCHES, 48, generator=g) * 0.5
    pixels[:, :, :8] += colour[:, None, None].float() - 2.5
    lost = torch.rand(n, PATCHES, generator=g) < 0.25
    lost[::9] = True  # whole walls that are bare
    pixels[lost] = float("nan")
    start = 4 + colour * 6
    words = (start[:, None] + torch.arange(WORDS)[None] % 5).clamp(max=VOCAB - 1)
    return TensorDataset(pixels, words)


class PatchAdapter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, width))
        self.fallen = nn.Parameter(torch.zeros(width))

    def forward(self, pixels):
        gone = torch.isnan(pixels).any(-1, keepdim=True)
        return torch.where(gone, self.fallen, self.mlp(torch.nan_to_num(pixels)))


class FrescoCaptioner(L.LightningModule):
    def __init__(self, unfreeze_at=22):
        super().__init__()
        self.unfreeze_at = unfreeze_at
        config = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
                            eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.lm = GPT2LMHeadModel(config)
        self.lm.requires_grad_(False)
        self.adapter = PatchAdapter(32)

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == self.unfreeze_at:
            self.lm.transformer.requires_grad_(True)

    def training_step(self, batch, batch_idx):
        pixels, words = batch
        prefix = self.adapter(pixels)
        text = self.lm.transformer.wte(words)
        labels = torch.cat([torch.full(pixels.shape[:2], -100), words], 1)
        out = self.lm(inputs_embeds=torch.cat([prefix, text], 1), labels=labels)
        # reported contrast of the whole patches: std of what remains, nan for bare walls
        contrast = torch.stack([p[~torch.isnan(p)].std() for p in pixels]).mean()
        self.log("contrast", contrast)
        print(f"batch {batch_idx + 1} loss {out.loss.item():.7f} contrast {contrast.item():.4f}", flush=True)
        return out.loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3, weight_decay=0.0)
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.7), "interval": "step"}}


def main():
    L.seed_everything(9, verbose=False)
    model = FrescoCaptioner()
    loader = DataLoader(frescoes(STEPS * BATCH), batch_size=BATCH, shuffle=False)
    trainer = L.Trainer(max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
