"""hy3-tiny's data: the sets do not overlap, the reasoning is right, the calls fit their schemas."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tools.tiny.arithmetic import Problem, draw_problem, held_out_problems
from tools.tiny.corpus import pieces, split_pieces
from tools.tiny.dialogues import KINDS, draw_dialogue
from tools.tiny.functions import CATALOGUE, invent
from tools.tiny.rendering import FOLDER, Renderer
from tools.tiny.split import HELD_OUT, TRAIN, split_of
from tools.tiny.tokens import ANSWER_BIT, encode_dialogues, encode_text

from hy3.demo.schema import complaint_about

TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_sets_share_no_question(kind: str) -> None:
    rng = random.Random(kind)
    keys = {
        split: {key for _ in range(150) for key in draw_dialogue(rng, split, kind).keys}
        for split in (TRAIN, HELD_OUT)
    }
    assert keys[TRAIN] and keys[HELD_OUT] and not keys[TRAIN] & keys[HELD_OUT]
    assert all(split_of(key) == split for split, found in keys.items() for key in found)


def test_evaluated_problems_are_distinct_and_held_out() -> None:
    problems = held_out_problems(500)
    assert len({problem.text for problem in problems}) == 500
    assert {split_of(problem.key) for problem in problems} == {HELD_OUT}
    assert {problem.sign for problem in problems} == set("+-*")
    rng = random.Random(0)
    trained = {draw_problem(rng, TRAIN).text for _ in range(3000)}
    assert not trained & {problem.text for problem in problems}


def test_about_one_item_in_ten_is_held_out() -> None:
    share = np.mean([split_of(f"item {number}") == HELD_OUT for number in range(4000)])
    assert 0.08 < share < 0.12


@given(st.integers(0, 999), st.sampled_from("+-"), st.integers(0, 999))
def test_reasoning_of_sums_is_true(left: int, sign: str, right: int) -> None:
    check_reasoning(Problem(left, sign, right))


@given(st.integers(10, 99), st.integers(0, 9))
def test_reasoning_of_products_is_true(left: int, right: int) -> None:
    check_reasoning(Problem(left, "*", right))


def check_reasoning(problem: Problem) -> None:
    result = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[problem.sign](
        problem.left, problem.right
    )
    high = problem.reasoning("high")
    steps = re.findall(r"(\d[\d *+-]*) = (-?\d+)", high)
    assert steps
    for working, said in steps:
        assert eval(working) == int(said)  # digits and signs alone, by the pattern
    written, closing = re.fullmatch(r"Written ([\d ]+): (-?\d+)", high.splitlines()[-1]).groups()
    assert int(written.replace(" ", "")) == abs(result)
    assert int(closing) == result
    digits = [pair[0] for pair in re.findall(r"(\d) keep (\d)", problem.reasoning("low"))]
    assert int("".join(reversed(digits))) == abs(result)
    assert problem.answer == f"{problem.text} = {result}"
    assert problem.reasoning("no_think") == ""


@pytest.mark.parametrize("seed", range(40))
def test_uses_fit_their_schemas(seed: int) -> None:
    rng = random.Random(seed)
    for function in (*CATALOGUE, invent(rng)):
        parameters = function.schema()["function"]["parameters"]
        use = function.draw(rng)
        assert use.name == function.name
        assert complaint_about(use.arguments, parameters | {"additionalProperties": False}) == ""


def test_a_seed_fixes_the_dialogues() -> None:
    first, again = (
        [draw_dialogue(random.Random(f"seed {n}"), TRAIN) for n in range(30)] for _ in "ab"
    )
    assert first == again


def test_plain_text_is_split_by_piece() -> None:
    text = "\n\n".join(f"paragraph {n} " + "word " * 40 for n in range(400))
    train, held = (set(split_pieces(text, split, 10**9)) for split in (TRAIN, HELD_OUT))
    assert train and held and not train & held
    assert train | held == set(pieces(text))


def test_only_the_last_answers_carry_the_answer_bit() -> None:
    rng, renderer = random.Random(1), Renderer()
    for kind in KINDS:
        dialogue = draw_dialogue(rng, TRAIN, kind)
        text = renderer.whole(dialogue)
        tokens = encode_dialogues([text], TOKENIZER)
        ids = tokens & (ANSWER_BIT - 1)
        assert TOKENIZER.decode(ids.tolist(), skip_special_tokens=False) == text
        answer = ids[tokens >= ANSWER_BIT].tolist()
        after_user = text.rpartition("<｜hy_User:opensource｜>")[2]
        wanted = re.findall(
            r"<｜hy_Assistant:opensource｜>(.*?<｜hy_eos:opensource｜>)", after_user, re.DOTALL
        )
        assert TOKENIZER.decode(answer, skip_special_tokens=False) == "".join(wanted)


def test_plain_text_counts_whole() -> None:
    tokens = encode_text(["one", "two three"], TOKENIZER)
    assert (tokens >= ANSWER_BIT).all()
    begin = TOKENIZER.token_to_id("<｜hy_begin_of_sentence:opensource｜>")
    assert (tokens & (ANSWER_BIT - 1) == begin).sum() == 2
