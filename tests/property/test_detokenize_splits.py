"""Any split of a text into tokens, and of tokens into steps, gives the same text and stop."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hy3.server.detokenize import Detokenizer

# A small alphabet makes overlapping stops likely; two characters take several bytes.
letters = st.text("aab你🙂", max_size=24)
stops = st.lists(st.text("ab你🙂", min_size=1, max_size=5), max_size=3)


def expected(text: str, stop_strings: list[str]) -> tuple[str, str | None]:
    """The definition, read literally: the shortest beginning that ends in a stop string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@st.composite
def split(draw: st.DrawFn, raw: bytes) -> list[list[bytes]]:
    """``raw`` as tokens of any length, grouped into steps of any length."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=len(raw))))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
    steps: list[list[bytes]] = []
    for token in tokens:
        if steps and draw(st.booleans()):
            steps[-1].append(token)
        else:
            steps.append([token])
    return steps


@settings(max_examples=400, deadline=None)
@given(st.data(), letters, stops)
def test_any_split_gives_the_same_text(data: st.DataObject, text: str, names: list[str]) -> None:
    steps = data.draw(split(text.encode()))
    vocabulary = [token for step in steps for token in step]
    detokenizer = Detokenizer(vocabulary.__getitem__, names)
    released, counted, stop, position = "", 0, None, 0
    for step in steps:
        part = detokenizer.feed(range(position, position + len(step)))
        position += len(step)
        released, counted, stop = released + part.text, counted + part.tokens, part.stop
        if stop is not None:
            break
        assert part.tokens == len(step)
    else:
        rest = detokenizer.finish()
        released, stop = released + rest.text, rest.stop
    wanted, wanted_stop = expected(text, names)
    assert (released, stop) == (wanted, wanted_stop)
    if stop is not None:
        # The counted tokens are the fewest that hold the stop's last byte.
        needed = len((wanted + stop).encode())
        sizes = [len(token) for token in vocabulary[:counted]]
        assert sum(sizes[:-1]) < needed <= sum(sizes)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=24), st.data())
def test_any_bytes_decode_as_at_once(raw: bytes, data: st.DataObject) -> None:
    steps = data.draw(split(raw))
    vocabulary = [token for step in steps for token in step]
    detokenizer = Detokenizer(vocabulary.__getitem__)
    text = "".join(detokenizer.feed([index]).text for index in range(len(vocabulary)))
    assert text + detokenizer.finish().text == raw.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(letters, stops)
def test_no_beginning_of_a_stop_is_released_too_early(text: str, names: list[str]) -> None:
    """What is released after each token never has to be taken back."""
    vocabulary = [character.encode() for character in text]
    detokenizer = Detokenizer(vocabulary.__getitem__, names)
    final, _ = expected(text, names)
    shown = ""
    for index in range(len(vocabulary)):
        part = detokenizer.feed([index])
        shown += part.text
        assert final.startswith(shown)
        if part.stop is not None:
            break
