import argparse
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup


class Regressor(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.backbone = AutoModel.from_pretrained(name)
        self.head = nn.Linear(self.backbone.config.hidden_size, 1)

    def forward(self, ids, mask):
        hidden = self.backbone(ids, attention_mask=mask).last_hidden_state
        pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head(pooled).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=1e-5)
    ap.add_argument("--max_norm", type=float, default=10.0)
    ap.add_argument("--fp16", action="store_true", default=True)
    args = ap.parse_args()
    from dataset import make_loader

    model = Regressor("roberta-large").cuda()
    loader = make_loader(AutoTokenizer.from_pretrained("roberta-large"))
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=1e-6)
    sched = get_linear_schedule_with_warmup(optim, 50, 3 * len(loader))
    scaler = torch.cuda.amp.GradScaler(enabled=args.fp16)
    for epoch in range(3):
        for ids, mask, y in loader:
            with torch.cuda.amp.autocast(enabled=args.fp16):
                loss = nn.functional.mse_loss(model(ids.cuda(), mask.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.unscale_(optim)
            nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            scaler.step(optim)
            scaler.update()
            optim.zero_grad()
            sched.step()


if __name__ == "__main__":
    main()
