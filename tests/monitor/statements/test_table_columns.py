"""A bad input that a column of a pandas table holds is named by the statement that wrote the column."""

from __future__ import annotations

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.watch import watch
from finitune.recording import Recording

pandas = pytest.importorskip("pandas")

PROGRAM = """
df = pandas.DataFrame({"sold": [3.0, 4.0, 5.0, 0.0, 2.0, 6.0, 3.0, 5.0]})
df["day"] = range(8)
WRITTEN
df["other"] = df.sold * 2.0
x = torch.tensor(TAKEN, dtype=torch.float32)
for n in range(1, 8):
    loss = model(x[n:n + 1].reshape(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def origin_of(directory, written, taken):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = PROGRAM.replace("WRITTEN", written).replace("TAKEN", taken)
    with watch(model, optimizer, run_dir=directory):
        user_program.run(source, torch=torch, pandas=pandas, model=model, optimizer=optimizer)
    recording = Recording.load(directory)
    assert not recording.events("broken")
    return recording.events("origin")[0]["origin"]


@pytest.mark.parametrize(("written", "op"), [
    ('df["change"] = df.sold.pct_change()', "input"),
    ('df["change"] = 1.0 / df["sold"]', "aten.div"),
    ('df["change"] = df.sold.diff(); df.loc[df.sold == 0, "change"] = df.sold / df.sold', "aten.div"),
    ('df["change"] = 1.0 / df["sold"]; df.loc[df.day == 0, "change"] = 1.0', "aten.div"),
])  # fmt: skip
@pytest.mark.parametrize("taken", ["df.change.to_numpy()", 'df["change"].values'])
def test_the_statement_that_wrote_it(tmp_path, written, op, taken):
    origin = origin_of(tmp_path, written, taken)
    assert (origin["op"], origin["phase"], origin["tensor"]) == (op, "input", "df['change']")
    assert 'df["change"] = df.sold.pct' in origin["line"] or "df.loc" in origin["line"] or "1.0 / " in origin["line"]


def test_a_table_that_came_so_is_named_where_it_enters_torch(tmp_path):
    origin = origin_of(tmp_path, "df['unused'] = 1.0", "(df.sold / df.sold).to_numpy()")
    assert "x = torch.tensor(" in origin["line"]
