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


def test_fires_for_a_value_outside_the_choices():
    (finding,) = foresee([UnknownKey(file="a.json", key="optim", value="adamv", release="transformers 5.23")])
    assert finding.severity == "warning"
    assert "adamv" in finding.message


def test_stays_quiet_where_every_key_is_known():
    assert not list(foresee([]))
    assert sum(e.bits for e in weigh([], set())) < 0
