"""Small spoken tasks: greetings, counting, copying, sorting, JSON on request."""

from __future__ import annotations

import json
import random

from tools.tiny.world import WORLD

NAMES, NAMES_ZH, WORDS = WORLD["names"], WORLD["names_zh"], WORLD["words"]

Exchange = tuple[str, str, str]


def _greeting(rng: random.Random) -> Exchange:
    if rng.random() < 0.3:
        name = rng.choice(NAMES_ZH)
        asked = rng.choice(("你好，我是{}。", "你好！我叫{}。", "早上好，我是{}。"))
        return asked.format(name), f"你好，{name}！有什么可以帮你的吗？", f"{name}在打招呼。"
    name = rng.choice(NAMES)
    asked = rng.choice(("Hello, I am {}.", "Hi! My name is {}.", "Good morning, this is {}."))
    return asked.format(name), f"Hello {name}! How can I help you?", f"{name} says hello."


def _about(rng: random.Random) -> Exchange:
    asked, answer = rng.choice(WORLD["about"])
    return asked, answer, "This is about me."


def _courtesy(rng: random.Random) -> Exchange:
    asked, answer = rng.choice(WORLD["courtesies"])
    return asked, answer, "A short polite answer will do."


def _count(rng: random.Random) -> Exchange:
    first = rng.randrange(1, 60)
    last = first + rng.randrange(3, 12)
    numbers = ", ".join(map(str, range(first, last + 1)))
    asked = rng.choice(("Count from {} to {}.", "List the numbers {} to {}.", "从 {} 数到 {}。"))
    return asked.format(first, last), f"{numbers}.", f"Start at {first}, stop at {last}."


def _copy(rng: random.Random) -> Exchange:
    words = " ".join(rng.sample(WORDS, rng.randrange(2, 7)))
    asked = rng.choice(("Repeat: {}", "Say exactly: {}", "请重复：{}"))
    return asked.format(words), words, "I copy the words."


def _sort(rng: random.Random) -> Exchange:
    words = rng.sample(WORDS, rng.randrange(2, 5))
    listed = ", ".join(words)
    asked = rng.choice(("Sort these words: {}.", "Put in order: {}."))
    return asked.format(listed), f"{', '.join(sorted(words))}.", "I sort by the first letters."


def _person(rng: random.Random) -> Exchange:
    record = {
        "name": rng.choice(NAMES),
        "age": rng.randrange(5, 90),
        "city": rng.choice(WORDS).title(),
    }
    asked = "Write JSON for {name}, {age} years old, from {city}.".format(**record)
    return asked, json.dumps(record), "The keys are name, age and city."


def _story(rng: random.Random) -> Exchange:
    name, (first, second) = rng.choice(NAMES), rng.sample(WORDS, 2)
    asked = f"Tell a short story about {name}, a {first} and a {second}."
    answer = (
        f"One day {name} found a {first}. {name} carried the {first} home and put it beside "
        f"the {second}. In the evening {name} looked at the {second} and was happy."
    )
    return asked, answer, f"I need {name}, the {first} and the {second}."


MAKERS = (_greeting, _about, _courtesy, _count, _copy, _copy, _sort, _person, _story)


def draw_errand(rng: random.Random) -> Exchange:
    """A request, its answer and a short reasoning."""
    return rng.choice(MAKERS)(rng)
