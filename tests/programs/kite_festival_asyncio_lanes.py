"""Kite tracking: an asyncio service that learns while it answers queries.

One lane feeds frames, one lane trains (in an executor thread of its own), one lane answers with the
same model from two more threads. Locks make it a strict turn-taking, so that a run can be replayed."""
import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

request_id = contextvars.ContextVar("request_id", default="none")
calls = {"train": 0, "answer": 0, "hook": 0}
grad_flags = []


class KiteNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)
        self.local = threading.local()

    def forward(self, track):
        self.local.count = getattr(self.local, "count", 0) + 1
        return self.head(torch.relu(self.conv(track)).mean(-1))


def hook(module, args, out):
    calls["hook"] += 1
    grad_flags.append(out.requires_grad)


async def frames(n):
    g = torch.Generator().manual_seed(8)
    sent = 0
    try:
        while True:
            track = torch.randn(24, 2, 10, generator=g).cumsum(-1)
            wind = track[:, :, -1] - track[:, :, 0]
            await asyncio.sleep(0)
            sent += 1
            yield track, wind
    finally:
        print(f"frame lane closed after {sent}")


def train_step(net, opt, track, wind):
    calls["train"] += 1
    assert threading.current_thread().name.startswith("learner")
    loss = nn.functional.smooth_l1_loss(net(track), wind / 3)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), net.local.count, request_id.get(), torch.is_grad_enabled()


@torch.no_grad()
def answer(net, track):
    calls["answer"] += 1
    return net(track[:1]).sum().item(), torch.is_grad_enabled(), net.local.count


async def timeout_probe():
    """a task that is always cancelled; it must see its own CancelledError"""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        calls["cancelled"] = calls.get("cancelled", 0) + 1
        raise


async def service(steps):
    torch.manual_seed(15)
    net = KiteNet()
    handle = net.register_forward_hook(hook)
    opt = torch.optim.NAdam(net.parameters(), lr=1e-2)
    loop = asyncio.get_running_loop()
    learner = ThreadPoolExecutor(1, thread_name_prefix="learner")
    askers = [ThreadPoolExecutor(1, thread_name_prefix=f"asker{i}") for i in range(2)]
    start_threads = threading.active_count()
    stream = frames(steps)
    step = 0
    async for track, wind in stream:
        step += 1
        request_id.set(f"r{step}")
        ctx = contextvars.copy_context()
        probe = asyncio.create_task(timeout_probe())
        loss, seen, rid, grad = await loop.run_in_executor(learner, ctx.run, train_step, net, opt, track, wind)
        a = await loop.run_in_executor(askers[step % 2], answer, net, track)
        probe.cancel()
        try:
            await probe
        except asyncio.CancelledError:
            pass
        print(f"step {step:2d} loss {loss:.6f} seen {seen} {rid} grad {grad} | answer {a[0]:+.5f} {a[1]} {a[2]} | "
              f"threads +{threading.active_count() - start_threads} tasks {len(asyncio.all_tasks())}")
        if step == steps:
            break
    await stream.aclose()
    for ex in [learner, *askers]:
        ex.shutdown()
    handle.remove()
    names = sorted(t.name for t in threading.enumerate())
    print("threads", names, "hook left", len(net._forward_hooks))
    print("calls", calls, "flags", sum(grad_flags), len(grad_flags))
    return sum(p.double().sum().item() for p in net.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    total = asyncio.run(service(25))
    print(f"weights {total:.8f}")
