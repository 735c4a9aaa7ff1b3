import numpy as np

from finitune.facts import Batching, TokenUse, Vocabulary
from finitune.remedies.name_pad_token import propose


def test_fires_with_the_name_where_it_is_known():
    ids = np.array([0])
    named = TokenUse(ids=ids, counts=ids, first=ids, sequences=1, names={0: "<pad>"})
    assert propose(Batching(pad_id=0), tokens=named).patch == {"pad_token": "<pad>"}
    assert propose(Batching(pad_id=0), Vocabulary(unk_id=0)).patch == {"pad_token": "<unk>"}
    assert propose(Batching(pad_id=7), Vocabulary(unk_id=0)).patch == {"pad_token_id": 7}


def test_stays_quiet_about_a_token_that_nobody_knows():
    assert not propose().patch
