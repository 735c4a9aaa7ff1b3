"""Tables of rows: Parquet and CSV, sound, damaged and hostile."""

import resource
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources import worlds
from tests.sources.worlds import chat, one_line

from finitune.finding import UnreadableInput
from finitune.repairs.repair import repair
from finitune.sources.data import rows as data_rows
from finitune.sources.data.rows import Row, rows
from finitune.sources.gather import gather

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def parquet(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def refused(path) -> str:
    with pytest.raises(UnreadableInput) as caught:
        deque(rows(path), maxlen=0)
    assert str(path) in one_line(caught.value)
    return str(caught.value)


def test_parquet_rows_in_order_over_groups_without_nulls(tmp_path):
    path = parquet(tmp_path / "d.parquet", {"text": [f"t{i}" for i in range(700)], "n": [None] * 700}, row_group_size=9)
    found = list(rows(path))
    assert [row.data for row in found] == [{"text": f"t{i}"} for i in range(700)]
    assert [row.line for row in found] == list(range(1, 701))


@pytest.mark.parametrize("name", ["d.parquet", "d"])
def test_chat_in_parquet_is_tokenised_as_from_json(tmp_path, name):
    items = [chat(), chat("what", "it is")]
    model = worlds.model(tmp_path / "m")
    one = gather(model=model, data=worlds.jsonl(tmp_path / "d.jsonl", items)).facts
    other = gather(model=model, data=parquet(tmp_path / name, {"messages": [item["messages"] for item in items]})).facts
    assert one.tokens.counts.tolist() == other.tokens.counts.tolist()
    assert one.labels.supervised.tolist() == other.labels.supervised.tolist()


def test_csv_rows(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('\ufeffinstruction,output,input\n"a ""b""\nc",d,\n\nx,y,z\n,only output,\n')
    assert list(rows(path)) == [
        Row(line=3, data={"instruction": 'a "b"\nc', "output": "d"}),
        Row(line=5, data={"instruction": "x", "output": "y", "input": "z"}),
        Row(line=6, data={"output": "only output"}),
    ]


def test_lists_in_csv_are_json(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text('messages\tn\n"[{""role"": ""user""}]"\t1\n')
    assert next(rows(path)).data == {"messages": [{"role": "user"}], "n": "1"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", None),
        (b"a,a\n1,2\n", "each once"),
        (b"a,b\n1,2,3\n", "line 2: 3 cells for 2 columns"),
        (b'a,b\n"1,2\n', "not a table"),
        (b"a\n\xff\n", "line 2: byte 0: not UTF-8"),
        (b"input_ids\n[1\n", "not JSON"),
        (b"a\n" + b"x" * (2**23 + 1), "not a table"),
    ],
)
def test_a_table_that_is_none(tmp_path, content, expected):
    (tmp_path / "d.csv").write_bytes(content)
    assert (expected or "names of the columns") in refused(tmp_path / "d.csv")


def test_a_group_that_is_too_large_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    path = parquet(tmp_path / "d.parquet", {"text": ["x" * 1000] * 10}, use_dictionary=False)
    monkeypatch.setattr(data_rows, "MAX_GROUP_BYTES", 5000)
    assert "row group 0" in refused(path)


def test_a_bomb_of_one_value_in_many_rows_stays_small(tmp_path):
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 2**22]))
    path = parquet(tmp_path / "d.parquet", {"text": values}, compression="zstd")
    assert path.stat().st_size < 10_000
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert "from so small a file" in refused(path)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20 < 1
    assert time.monotonic() - start < 5


@given(st.data())
def test_damaged_parquet_is_one_line_or_rows(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("d") / "d.parquet"
    raw = bytearray(parquet(path, {"text": [f"w{i}" * 9 for i in range(50)], "n": list(range(50))}).read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(5, len(raw)))]
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        for row in rows(path):
            assert isinstance(row.data, dict)
    except UnreadableInput as error:
        one_line(error)


@given(st.binary(max_size=200), st.sampled_from([".csv", ".tsv", ".parquet"]))
def test_any_bytes_at_all(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("d") / f"d{suffix}"
    path.write_bytes(content)
    try:
        list(rows(path))
    except UnreadableInput as error:
        one_line(error)


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d"])
def test_rows_are_not_taken_out_of_a_table(tmp_path, name):
    path = tmp_path / name
    if name == "d.csv":
        path.write_text("text\na\nb\n")
    else:
        parquet(path, {"text": ["a", "b"]})
    with pytest.raises(UnreadableInput, match="rows of a table"):
        repair("drop-unsupervised-rows", data=path, output=tmp_path / "out", rows="0")
    assert not (tmp_path / "out").exists()
