from finitune.facts import Vocabulary
from finitune.remedies.own_pad_token import propose


def test_fires_where_padding_is_the_end_token():
    assert propose(Vocabulary(pad_id=2, eos_id=2)) is not None


def test_fires_with_a_token_that_the_vocabulary_has_to_spare():
    remedy = propose(Vocabulary(pad_id=2, eos_id=2, spare_pad={"<pad>": 0}))
    assert remedy.patch == {"pad_token": "<pad>", "pad_token_id": 0}
    assert propose(Vocabulary(pad_id=2, eos_id=2)).patch is None


def test_stays_quiet_where_padding_has_its_own_token():
    assert propose(Vocabulary(pad_id=0, eos_id=2)) is None
