from finitune.causes.misspelt_setting import foresee, weigh
from finitune.facts import UnknownKey


def test_fires_with_the_nearest_key():
    (finding,) = foresee([UnknownKey(file="a.json", key="bp16", near=["bf16", "fp16"])])
    assert finding.severity == "warning"
    assert (finding.where.file, finding.where.key) == ("a.json", "bp16")
    assert "did you mean bf16 or fp16?" in finding.message


def test_fires_softly_for_a_key_that_may_be_the_script_s_own():
    (finding,) = foresee([UnknownKey(file="a.json", key="my_flag")])
    assert finding.severity == "info"


def test_keys_without_a_neighbour_are_one_finding_for_each_file():
    found = list(foresee([UnknownKey(file=file, key=f"k{i}", release="x 1") for file in "ab" for i in range(10)]))
    assert [(finding.where.file, finding.severity) for finding in found] == [("a", "info"), ("b", "info")]
    assert found[0].message == "k0, k1, k2, k3, k4, k5, k6, k7 and 2 more are no settings that are known here (x 1)"
    assert found[0].evidence["keys"] == [f"k{i}" for i in range(10)]


def test_fires_for_a_value_outside_the_choices():
    (finding,) = foresee([UnknownKey(file="a.json", key="optim", value="adamv", release="transformers 5.23")])
    assert finding.severity == "warning"
    assert "adamv" in finding.message


def test_stays_quiet_where_every_key_is_known():
    assert not list(foresee([]))
    assert sum(e.bits for e in weigh([], set())) < 0
