from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.sandbox.clip import Clip, clip

CUT = "bytes of output cut"


def test_short_output_is_untouched():
    assert clip("héllo", 6) == "héllo"


def test_head_and_tail_are_kept_and_the_cut_is_named():
    text = clip("a" * 100 + "b" * 100, 20)
    assert text == f"{'a' * 10}\n... [180 {CUT}] ...\n{'b' * 10}"


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.text(alphabet="aé€😀\n", max_size=200), st.integers(2, 64), st.integers(1, 17))
def test_no_character_is_split_and_no_byte_is_lost_from_the_count(text, limit_bytes, step):
    data = text.encode()
    collected = Clip(limit_bytes)
    for start in range(0, len(data), step):
        collected.feed(data[start : start + step])
    kept = collected.text()
    if len(data) <= limit_bytes:
        assert kept == text
        return
    assert "\ufffd" not in kept
    head, notice, tail = kept.partition("\n... [")
    cut_bytes, _, tail = tail.partition(f" {CUT}] ...\n")
    assert notice and text.startswith(head) and text.endswith(tail)
    assert len(head.encode()) + int(cut_bytes) + len(tail.encode()) == len(data)
    assert len((head + tail).encode()) <= limit_bytes


def test_memory_stays_bounded_for_an_endless_stream():
    collected = Clip(1000)
    for _ in range(1000):
        collected.feed(b"x" * 65536)
    assert len(collected._head) + len(collected._tail) == 1000
    assert collected.total_bytes == 65536000
