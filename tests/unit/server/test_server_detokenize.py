"""Text and stop strings from token ids: what is released, when, and how many tokens count."""

from __future__ import annotations

import pytest

from hy3.server.detokenize import Detokenizer, Released, StopFinder

VOCABULARY = [
    b"a",
    b"b",
    b"ab",
    b"abc",
    b"c",
    b"\xe4\xbd",
    b"\xa0",
    b"\xe4\xbd\xa0",
    b"X\xe4",
    b"\n",
]


def detokenizer(*stops: str, min_tokens: int = 0) -> Detokenizer:
    return Detokenizer(VOCABULARY.__getitem__, stops, min_tokens)


def test_a_character_cut_by_tokens_waits_for_its_last_byte() -> None:
    text = detokenizer()
    assert text.feed([5]) == Released("", 1)
    assert text.feed([6, 0]) == Released("你a", 2)
    assert text.finish() == Released("", 0)


def test_a_character_that_never_completes_becomes_the_replacement() -> None:
    text = detokenizer()
    assert text.feed([8]).text == "X"
    assert text.feed([0]).text == "\ufffda"
    assert text.feed([5]).text == ""
    assert text.finish().text == "\ufffd"


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    text = detokenizer("bca")
    assert text.feed([0]) == Released("a", 1)
    assert text.feed([1]) == Released("", 1)
    assert text.feed([4]) == Released("", 1)
    assert text.feed([3]) == Released("", 1, "bca")


def test_tokens_after_the_stop_in_the_same_step_do_not_count() -> None:
    assert detokenizer("ca").feed([3, 0, 1, 1]) == Released("ab", 2, "ca")


def test_held_text_is_released_when_it_cannot_become_a_stop() -> None:
    text = detokenizer("abcabd")
    assert text.feed([3, 2]) == Released("", 2)
    assert text.feed([4]) == Released("abc", 1)
    assert text.finish() == Released("abc", 0)


def test_a_stop_inside_a_multi_byte_character_of_two_tokens() -> None:
    assert detokenizer("你").feed([0, 5, 6, 0]) == Released("a", 3, "你")


def test_the_stop_that_ends_first_wins_and_the_longer_of_two_that_end_together() -> None:
    assert StopFinder(["bcabX", "abc"]).feed("xabcabX") == ("x", "abc")
    assert StopFinder(["c", "bc", "abc"]).feed("xabc") == ("x", "abc")


def test_stops_before_min_tokens_are_text() -> None:
    text = detokenizer("b", min_tokens=2)
    assert text.feed([1, 1, 0, 1]) == Released("bba", 4, "b")


def test_a_stop_that_the_replacement_character_completes() -> None:
    text = detokenizer("\ufffd")
    assert text.feed([0, 5]) == Released("a", 2)
    assert text.finish() == Released("", 0, "\ufffd")


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_no_stop_means_everything(stops: tuple[str, ...]) -> None:
    text = detokenizer(*stops)
    assert text.feed([3, 3, 9]) == Released("abcabc\n", 3)
