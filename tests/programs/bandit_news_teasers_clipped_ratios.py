import torch


class TeaserPolicy(torch.nn.Module):
    """Chooses one of six teasers for a reader of the morning page."""

    def __init__(self, n_context, n_teasers, width=24):
        super().__init__()
        self.trunk = torch.nn.Linear(n_context, width)
        self.choice = torch.nn.Linear(width, n_teasers)

    def forward(self, context):
        return torch.softmax(self.choice(torch.tanh(self.trunk(context))), dim=-1)


def morning_log(n_events, n_context, n_teasers, seed):
    """Events as the web server kept them: context, teaser, its probability with two digits, click."""
    g = torch.Generator().manual_seed(seed)
    context = torch.randn(n_events, n_context, generator=g)
    habit = 1.1 * torch.randn(n_context, n_teasers, generator=g)
    taste = torch.randn(n_context, n_teasers, generator=g)
    served = torch.softmax(context @ habit, -1)
    teaser = torch.multinomial(served, 1, generator=g).squeeze(1)
    propensity = served.gather(1, teaser[:, None]).squeeze(1)
    propensity = torch.round(propensity * 100) / 100
    likes = torch.sigmoid((context @ taste).gather(1, teaser[:, None]).squeeze(1))
    click = torch.bernoulli(likes, generator=g)
    return context, teaser, propensity, click


def off_policy_loss(policy, context, teaser, propensity, click, baseline, cap=5.0):
    probs = policy(context)
    chosen = probs.gather(1, teaser[:, None]).squeeze(1)
    ratio = chosen / propensity
    clipped = torch.clamp(ratio, max=cap)
    value = (clipped * (click - baseline)).mean()
    entropy = -(probs * probs.log()).sum(-1).mean()
    return -value - 0.02 * entropy


def learn(batch=16, steps=36, seed=1):
    torch.manual_seed(seed)
    log = morning_log(batch * steps, 8, 6, seed + 100)
    policy = TeaserPolicy(8, 6)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    baseline = 0.5
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        context, teaser, propensity, click = (column[part] for column in log)
        loss = off_policy_loss(policy, context, teaser, propensity, click, baseline)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        baseline = 0.9 * baseline + 0.1 * click.mean().item()
        print("step", step + 1, "loss", round(loss.item(), 6), "click rate", round(baseline, 4))
    return policy


policy = learn()
print("squared norm of the policy", sum(float((w.detach() ** 2).sum()) for w in policy.parameters()))
