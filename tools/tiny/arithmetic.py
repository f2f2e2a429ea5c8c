"""Arithmetic problems with worked reasoning: + and - to 3 digits, x of 2 digits by 1."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.tiny.split import split_of

ENGLISH = (
    "What is {}?",
    "Calculate {}.",
    "{} = ?",
    "Compute {}",
    "How much is {}?",
    "Please work out {}.",
    "Tell me {}.",
)
CHINESE = ("计算 {}。", "{} 等于多少？", "请算出 {}。", "{} 是多少？")


@dataclass(frozen=True)
class Problem:
    """``left sign right``, the sign one of ``+``, ``-`` and ``*``."""

    left: int
    sign: str
    right: int

    @property
    def text(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def key(self) -> str:
        return f"arithmetic {self.text}"

    @property
    def result(self) -> int:
        left, right = self.left, self.right
        return {"+": left + right, "-": left - right, "*": left * right}[self.sign]

    @property
    def answer(self) -> str:
        return f"{self.text} = {self.result}"

    def reasoning(self, effort: str) -> str:
        """Every digit for ``high``, only what is written and carried for ``low``."""
        if effort == "no_think":
            return ""
        steps = _steps(self)
        if effort == "low":
            return ", ".join(f"{digit} keep {carry}" for _, digit, carry in steps) + "."
        lines = [_opening(self)]
        lines += [f"{sum_}, write {digit}, keep {carry}." for sum_, digit, carry in steps]
        written = [digit for _, digit, _ in reversed(steps)]
        lines.append(f"Written {' '.join(map(str, written))}: {self.result}")
        return "\n".join(lines)


def _opening(problem: Problem) -> str:
    if problem.sign == "*":
        return f"{problem.text}: {_spaced(problem.left, 2)} by {problem.right}."
    opening = f"{problem.text}: {_spaced(problem.left, 3)} and {_spaced(problem.right, 3)}."
    if problem.sign == "-":
        order = "smaller, so swap and minus" if problem.result < 0 else "not smaller"
        opening += f" The first is {order}."
    return opening


def _spaced(number: int, width: int) -> str:
    return " ".join(f"{number:0{width}d}")


def _steps(problem: Problem) -> list[tuple[str, int, int]]:
    """From the ones up: the working of one column, the digit written, what is kept."""
    steps: list[tuple[str, int, int]] = []
    kept = 0
    if problem.sign == "*":
        for digit in reversed(f"{problem.left:02d}"):
            product = int(digit) * problem.right
            total = product + kept
            working = f"{digit} * {problem.right} = {product}, {product} + {kept} = {total}"
            kept = total // 10
            steps.append((working, total % 10, kept))
        return [*steps, (f"{kept} on top", kept, 0)]
    top, bottom = problem.left, problem.right
    if problem.sign == "-" and top < bottom:
        top, bottom = bottom, top
    for above, below in zip(reversed(f"{top:03d}"), reversed(f"{bottom:03d}"), strict=True):
        below_signed = int(below) if problem.sign == "+" else -int(below)
        total = int(above) + below_signed + (kept if problem.sign == "+" else -kept)
        working = f"{above} {problem.sign} {below} {problem.sign} {kept} = {total}"
        kept = int(total >= 10 or total < 0)
        steps.append((working, total % 10, kept))
    if problem.sign == "+":
        steps.append((f"{kept} on top", kept, 0))
    return steps


def draw_problem(rng: random.Random, split: str) -> Problem:
    """A problem of the given set; lengths are drawn first, so that short numbers are seen too."""
    while True:
        sign = rng.choice("++--*")
        if sign == "*":
            problem = Problem(rng.randint(10, 99), sign, rng.randint(0, 9))
        else:
            left, right = (rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3))) for _ in "ab")
            problem = Problem(left, sign, right)
        if split_of(problem.key) == split:
            return problem


def question(rng: random.Random, problem: Problem) -> str:
    """The problem in words; the sign of a product is written in one of three ways."""
    text = problem.text
    if problem.sign == "*":
        text = text.replace("*", rng.choice("*x×"))
    if rng.random() < 0.2:
        text = text.replace(" ", "")
    return rng.choice(CHINESE if rng.random() < 0.2 else ENGLISH).format(text)


def held_out_problems(count: int) -> list[Problem]:
    """The fixed evaluation set, without repeats."""
    rng = random.Random(20260101)
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = draw_problem(rng, "heldout")
        found.setdefault(problem.key, problem)
    return list(found.values())
