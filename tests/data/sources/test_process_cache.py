"""What a process keeps."""

import pickle

from t2t.data.sources.process_cache import ProcessCache


def test_a_process_keeps_the_last_values():
    cache = ProcessCache(10, len)
    made = []

    def make(key):
        made.append(key)
        return "x" * key

    for key in (4, 5, 4, 3, 5, 20, 4):
        assert cache.get(key, make) == "x" * key
    # 5 is dropped for 3, as 4 was used after it; 20 alone exceeds the limit.
    assert made == [4, 5, 3, 5, 20, 4]
    assert list(cache.values) == [4]
    copy = pickle.loads(pickle.dumps(cache))
    assert not copy.values
    assert copy.get(2, make) == "xx"
