"""Two places where optimizers step: in the same pass of a loop or not."""

from types import SimpleNamespace

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.crash import record_crash
from finitune.monitor.process import Monitor
from finitune.monitor.step_places import StepPlace
from finitune.monitor.user_code import source_line
from finitune.monitor.watch import watch
from finitune.recording import Recording

SAME = [
    "for n in range(3):\n    STEP\n    if n == 2:\n        STEP\n",
    "def update(n):\n    STEP\n    if n == 2:\n        STEP\n\nfor n in range(3):\n    update(n)\n",
    "for epoch in range(2):\n    for n in range(3):\n        STEP\n        (epoch,\n         STEP)\n",
    "for n in range(3):\n    for k in range(2):\n        STEP\n    STEP\n",  # the last of several
    "def update():\n    STEP\n\nfor n in range(3):\n    update()\n    STEP\n",
    "def update():\n    STEP\n\nupdate()\nSTEP\n",
]
OTHER = [
    "for n in range(3):\n    STEP\nfor n in range(1):\n    STEP\n",
    "for n in range(3):\n    if n == 2:\n        STEP\n    elif n == 1:\n        STEP\n",  # the pass before
    "def update():\n    for n in range(3):\n        STEP\n\nupdate()\nSTEP\n",
    "def update():\n    for n in range(3):\n        STEP\n\nfor n in range(2):\n    STEP\n    update()\n",
    "for n in range(3):\n    for k in range(2):\n        STEP\n    for k in range(1):\n        STEP\n",
]


def in_pass(source):
    """Of the last two steps of a program."""
    places = []
    user_program.run(source.replace("STEP", "places.append(here())"), places=places, here=StepPlace.now)
    return places[-1].is_in_pass_of(places[-2])


@pytest.mark.parametrize("source", SAME)
def test_the_same_pass(source):
    assert in_pass(source)


@pytest.mark.parametrize("source", OTHER)
def test_another_pass(source):
    assert not in_pass(source)


NEXT = [
    "for n in range(3):\n    STEP\n",
    "def update(n):\n    for n in range(3):\n        STEP\n\nupdate(1)\n",
    "for n in range(3):\n    if n % 2:\n        STEP\n    else:\n        STEP\n",
    "for n in range(3):\n    if n == 0:\n        STEP\n    elif n == 1:\n        STEP\n    else:\n        STEP\n",
]
NOT_NEXT = [
    "for n in range(3):\n    for one in range(2):\n        STEP\n",  # several optimizers in each pass
    "def update():\n    for one in range(2):\n        STEP\n\nfor n in range(3):\n    update()\n",
    "for n in range(3):\n    STEP\n    STEP\n",
    "STEP\nSTEP\n",
    "for n in range(3):\n    for k in range(2):\n        if k:\n            STEP\n        else:\n            STEP\n",
    "for n in range(3):\n    if n:\n        STEP\n    STEP\n",
]


@pytest.mark.parametrize(("source", "follows"), [*((one, True) for one in NEXT), *((one, False) for one in NOT_NEXT)])
def test_the_next_pass_of_the_only_loop(source, follows):
    answers, places = [], [None]
    step = "answers.append(here().follows(places[-1])); places.append(here())"
    user_program.run(source.replace("STEP", step), answers=answers, places=places, here=StepPlace.now)
    assert answers[-1] == follows


ABOVE = [
    "for n in range(3):\n    if n == 2:\n        STEP\n    if n < 2:\n        STEP\n",
    "def a():\n    STEP\n\ndef b():\n    STEP\n\nfor n in 0, 1:\n    if n:\n        a()\n    if not n:\n        b()\n",
    "def update(n):\n    if n:\n        STEP\n    if not n:\n        STEP\n\nfor n in range(2):\n    update(n)\n",
    "for k in 0, 1:\n    for n in 0, 1:\n        if n:\n            STEP\n        if not n:\n            STEP\n",
]
NOT_ABOVE = [
    "for n in range(3):\n    STEP\n    STEP\n",
    "for n in range(3):\n    STEP\n",
    "for n in range(3):\n    for k in range(2):\n        if k:\n            STEP\n        else:\n            STEP\n",
    "def update(k):\n    if k:\n        STEP\n    else:\n        STEP\n\nfor k in range(2):\n    update(k)\n",
    "STEP\nSTEP\n",
]


@pytest.mark.parametrize(("source", "above"), [*((one, True) for one in ABOVE), *((one, False) for one in NOT_ABOVE)])
def test_a_place_above_the_last_is_in_the_next_pass(source, above):
    answers, places = [], [None]
    step = "answers.append(here().stands_above(places[-1])); places.append(here())"
    user_program.run(source.replace("STEP", step), answers=answers, places=places, here=StepPlace.now)
    assert answers[-1] == above


AFTER_STEP = """
model = torch.nn.Linear(4, 2)
optimizers = [torch.optim.SGD([one], lr=0.1) for one in model.parameters()]
for one in optimizers:
    watch(model, one)
for n in range(6):
    model(torch.randn(3, 4)).sum().backward()
    if n % EVERY == EVERY - 1:
        for one in optimizers:
            one.step()
        model.zero_grad()
    LATER
"""


RAISES = """
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch(model, optimizer)
for n in range(6):
    optimizer.param_groups[0]["lr"] = 0.1 * (1 - n / 3) ** 0.9
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
"""


OWN = [
    "for r in 0, 1:\n    for n in 0, 1:\n        STEP\n    for n in 0, 1:\n        loss.backward()\n        STEP\n",
    "def b():\n    for n in 0, 1:\n        loss.backward()\n        STEP\n\nfor n in 0, 1:\n    STEP\n    b()\n",
]
NOT_OWN = [
    "for r in 0, 1:\n    loss.backward()\n    STEP\n    loss.backward()\n    for n in (0,):\n        STEP\n",
    "for r in 0, 1:\n    for n in 0, 1:\n        loss.backward()\n        STEP\n    loss.backward()\n    STEP\n",
    "for n in 0, 1:\n    loss.backward()\n    STEP\n",
]


@pytest.mark.parametrize(("source", "own"), [*((one, True) for one in OWN), *((one, False) for one in NOT_OWN)])
def test_a_loop_of_its_own(source, own):
    answers, places = [], [None]
    step = "answers.append(here().has_loop_since(places[-1])); places.append(here())"
    loss = SimpleNamespace(backward=lambda: None)
    user_program.run(source.replace("STEP", step), answers=answers, places=places, here=StepPlace.now, loss=loss)
    assert (True in answers) == own


TURNS = """
critic, actor = (torch.nn.Linear(3, 1) for _ in range(2))
of_critic, of_actor = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (critic, actor))
for one, optimizer in ((critic, of_critic), (actor, of_actor)):
    watch(one, optimizer)
for turn in range(3):
    for model, optimizer in ((critic, of_critic),) * 3:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    for model, optimizer in ((actor, of_actor),) * 2:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
"""


def test_parts_of_a_training_that_take_turns_in_loops_of_their_own_are_counted_one_by_one():
    idle = torch.nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1)) as monitor:
        user_program.run(TURNS, torch=torch, watch=watch)
    assert Recording.load(monitor.run_dir).signals["loss"].last_step == 15


def of_a_library(steps):
    """A loop that is none of the user's."""
    for step in steps:
        step()


FITTED = """
def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        loop([optimizer.step])
    loop([step] * 4)

def main():
    first = torch.nn.Linear(3, 2)
    fit(first)
    fit(torch.nn.Sequential(first.requires_grad_(False), torch.nn.Linear(2, 1)))
main()
"""


def test_trainings_of_a_library_one_after_the_other_share_no_step(monkeypatch):
    monkeypatch.setattr(source_line, "is_users", lambda file: file == user_program.FILE)
    with Monitor(everything=True) as monitor:
        user_program.run(FITTED, torch=torch, loop=of_a_library)
    assert Recording.load(monitor.run_dir).signals["loss"].last_step == 8


@pytest.mark.parametrize("by_library", [True, False])
def test_a_step_that_is_repeated_stands_in_a_loop_below_unless_its_function_is_called_again(by_library):
    """The identity of a frame may be that of one that has ended."""
    places, source = [], "def update():\n    STEP\n    STEP\n\nCALL\n"
    call = "loop([update])" if by_library else "update()"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_line, "is_users", lambda file: file == user_program.FILE)
        source = source.replace("STEP", "places.append(here())").replace("CALL", call)
        user_program.run(source, places=places, here=StepPlace.now, loop=of_a_library)
    first, second = places
    assert second.is_in_pass_of(first)
    assert second.is_in_pass_of(first, repeated=True) == by_library


DELAYED = """
def update_actor():
    loss = critic(actor(torch.randn(4, 3))).mean() * (torch.inf if n == 6 else 1.0)
    of_actor.zero_grad()
    loss.backward()
    of_actor.step()

def update_critic():
    of_critic.zero_grad()
    critic(torch.randn(4, 2)).square().mean().backward()
    of_critic.step()

actor, critic = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
of_actor, of_critic = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (actor, critic))
for one, optimizer in ((actor, of_actor), (critic, of_critic)):
    watch(one, optimizer)
for n in range(1, 9):
    if n % 2 == 0:
        update_actor()
    update_critic()
"""


def test_an_actor_that_steps_before_its_critic_in_each_second_pass_steps_with_it():
    idle = torch.nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1)) as monitor:
        user_program.run(DELAYED, torch=torch, watch=watch)
    recording = Recording.load(monitor.run_dir)
    assert recording.signals["loss"].last_step == 8
    assert [incident["step"] for incident in recording.events("incident")] == [6]


DEPOTS = """
torch.manual_seed(0)
models = [torch.nn.Linear(2, 1) for _ in range(3)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for model, optimizer in zip(models, optimizers):
    watch(model, optimizer)

def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()

for n in range(1, 7):
    for which, (model, optimizer) in enumerate(zip(models, optimizers)):
        if which != LATE or n >= 4:
            train(model, optimizer)
"""


@pytest.mark.parametrize("late", [0, 1, 2])
def test_one_that_joins_a_loop_over_several_later_makes_no_step_of_its_own(late):
    idle = torch.nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1)) as monitor:
        user_program.run(DEPOTS.replace("LATE", str(late)), torch=torch, watch=watch)
    assert Recording.load(monitor.run_dir).signals["loss"].last_step == 6


COPIES = """
torch.manual_seed(0)
kept = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
def train(parts):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(parts):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()

def main():
    for n in range(3):
        list(train(each) for each in PARTS)
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(1, 1, 1), (1, 1, 2), (2, 1, 1)])
def test_each_copy_that_is_trained_with_an_optimizer_of_its_own_makes_steps_of_its_own(tmp_path, parts):
    with Monitor(run_dir=tmp_path / "run", everything=True):
        user_program.run(COPIES, torch=torch, PARTS=parts)
    assert Recording.load(tmp_path / "run").signals["loss"].last_step == 3 * sum(parts)


def test_what_a_step_raises_belongs_to_it():
    idle = torch.nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1)) as monitor:
        try:
            user_program.run(RAISES, torch=torch, watch=watch)
        except Exception as error:
            record_crash(monitor, error, error.__traceback__)
    recording = Recording.load(monitor.run_dir)
    assert not recording.events("broken")
    (crash,) = recording.events("incident")
    assert crash["step"] == 5
    assert any(fact.get("optimizer") == "SGD" and "j" in fact["learning_rate"] for fact in crash["batch"])


@pytest.mark.parametrize(
    ("every", "later", "step"),
    [
        (1, "assert n < 3", 4),
        (2, "assert n < 3", 2),  # the fourth backward
        (2, "assert n < 2", 2),  # the third backward has begun the second step
        (1, "assert n < 3 or model(torch.randn(3, 5)) is None", 4),
    ],
)
def test_what_is_raised_below_a_step_belongs_to_it(every, later, step):
    source = AFTER_STEP.replace("EVERY", str(every)).replace("LATER", later)
    idle = torch.nn.Linear(1, 1)
    with watch(idle, torch.optim.SGD(idle.parameters(), lr=0.1)) as monitor:
        try:
            user_program.run(source, torch=torch, watch=watch)
        except Exception as error:
            record_crash(monitor, error, error.__traceback__)
    (crash,) = Recording.load(monitor.run_dir).events("incident")
    assert crash["step"] == step
