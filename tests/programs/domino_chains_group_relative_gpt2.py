# Group relative policy optimisation, written out, on a GPT-2 that lays dominoes.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(20)
PIPS, LAID, GROUP = 4, 4, 10
TILES = PIPS * PIPS                       # tile t shows t // PIPS on its left, t % PIPS on its right
VOCAB = TILES + PIPS                      # one more token for every pip that a game may be opened with
shape = GPT2Config(vocab_size=VOCAB, n_positions=8, n_embd=32, n_layer=1, n_head=2,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
policy, reference = GPT2LMHeadModel(shape), GPT2LMHeadModel(shape)
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)
optimiser = torch.optim.AdamW(policy.parameters(), lr=4e-3, weight_decay=0.0)
not_a_tile = torch.arange(VOCAB) >= TILES


def next_tile_logits(model, ids):
    return model(input_ids=ids).logits.masked_fill(not_a_tile, -torch.inf)


@torch.no_grad()
def lay(opening):
    ids = opening[:, None]
    for _ in range(LAID):
        p = next_tile_logits(policy, ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ids


def score(ids):
    """Matching ends are counted; a hand that lays the same tile twice is out of the game."""
    tiles = ids[:, 1:]
    left, right = tiles // PIPS, tiles % PIPS
    ends = torch.cat([ids[:, :1] - TILES, right[:, :-1]], 1)
    points = (left == ends).sum(1).float()
    cheats = torch.tensor([len(set(row)) < LAID for row in tiles.tolist()])
    return points.masked_fill(cheats, -torch.inf)


def token_logps(model, ids):
    logp = next_tile_logits(model, ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)


def relative(points):
    points = points.view(-1, GROUP)
    fair = torch.isfinite(points)
    count = fair.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(fair, points, 0.0).sum(1, keepdim=True) / count
    centred = torch.where(fair, points - mean, 0.0)
    spread = (centred.pow(2).sum(1, keepdim=True) / count).sqrt()
    return torch.where(spread > 0, centred / spread, 0.0).flatten(), fair.sum().item()


updates = 0
for game in range(1, 19):
    tables = 1 if game % 3 == 0 else 4
    opening = torch.randint(TILES, VOCAB, (tables,)).repeat_interleave(GROUP)
    ids = lay(opening)
    points = score(ids)
    gain, fair = relative(points)
    average = points[torch.isfinite(points)].mean().item()
    if not gain.any():
        print(f"game {game:2d}  nothing to compare, average {average:.2f}")
        continue
    with torch.no_grad():
        old, ref = token_logps(policy, ids), token_logps(reference, ids)
    for inner in (1, 2):
        new = token_logps(policy, ids)
        ratio = (new - old).exp()
        surrogate = torch.minimum(ratio * gain[:, None], ratio.clamp(0.8, 1.2) * gain[:, None])
        kl = (ref - new).exp() - (ref - new) - 1
        loss = (0.02 * kl - surrogate).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        updates += 1
        print(f"game {game:2d}.{inner}  loss {loss.item():+.5f}  average {average:.2f}  fair hands {fair}/{len(ids)}")
    if game % 6 == 0:
        reference.load_state_dict(policy.state_dict())
print("updates", updates, "absolute weights", round(sum(p.detach().abs().sum().item() for p in policy.parameters()), 3))
