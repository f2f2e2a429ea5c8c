"""A closed world of short facts (world.json), asked in English and Chinese."""

from __future__ import annotations

import random

from tools.tiny.world import WORLD

WEEK, MONTHS, PLANETS, ORDINALS = (WORLD[key] for key in ("week", "months", "planets", "ordinals"))


def _capitals(rng: random.Random) -> tuple[str, str, str]:
    land, city, land_zh, city_zh = rng.choice(WORLD["capitals"])
    if rng.random() < 0.35:
        asked = rng.choice(("{}的首都是哪里？", "{}的首都是什么？", "请问{}的首都？"))
        return asked.format(land_zh), f"{land_zh}的首都是{city_zh}。", f"问的是{land_zh}的首都。"
    if rng.random() < 0.3:
        asked = rng.choice(
            ("{} is the capital of which country?", "Which country has {} as capital?")
        )
        return asked.format(city), f"{city} is the capital of {land}.", f"The city is {city}."
    asked = rng.choice(
        (
            "What is the capital of {}?",
            "Name the capital of {}.",
            "Capital of {}?",
            "Which city is the capital of {}?",
            "Tell me the capital of {}.",
        )
    )
    return asked.format(land), f"The capital of {land} is {city}.", f"The country is {land}."


def _opposites(rng: random.Random) -> tuple[str, str, str]:
    pair = list(rng.choice(WORLD["opposites"]))
    rng.shuffle(pair)
    asked = rng.choice(
        ("What is the opposite of {}?", "Give the opposite of {}.", "Opposite of {}?")
    )
    return (
        asked.format(pair[0]),
        f"The opposite of {pair[0]} is {pair[1]}.",
        f"The word is {pair[0]}.",
    )


def _colours(rng: random.Random) -> tuple[str, str, str]:
    thing, colour, thing_zh, colour_zh = rng.choice(WORLD["colours"])
    if rng.random() < 0.4:
        return (
            f"{thing_zh}是什么颜色？",
            f"{thing_zh}是{colour_zh}的。",
            f"问的是{thing_zh}的颜色。",
        )
    asked = rng.choice(
        ("What colour is {}?", "Which colour does {} have?", "Name the colour of {}.")
    )
    return asked.format(thing), f"{thing} is {colour}.".capitalize(), f"The thing is {thing}."


def _legs(rng: random.Random) -> tuple[str, str, str]:
    animal, count, animal_zh, count_zh = rng.choice(WORLD["legs"])
    if rng.random() < 0.4:
        return f"{animal_zh}有几条腿？", f"{animal_zh}有{count_zh}条腿。", f"问的是{animal_zh}。"
    asked = rng.choice(("How many legs does a {} have?", "Count the legs of a {}."))
    return asked.format(animal), f"A {animal} has {count} legs.", f"The animal is a {animal}."


def _orders(rng: random.Random) -> tuple[str, str, str]:
    names, kind = rng.choice(((WEEK, "day"), (MONTHS, "month")))
    index = rng.randrange(len(names))
    step, word = rng.choice(((1, "after"), (-1, "before")))
    other = names[(index + step) % len(names)]
    asked = rng.choice(("Which {} comes {} {}?", "What {} is {} {}?")).format(
        kind, word, names[index]
    )
    return asked, f"The {kind} {word} {names[index]} is {other}.", f"We look {word} {names[index]}."


def _planets(rng: random.Random) -> tuple[str, str, str]:
    index = rng.randrange(len(PLANETS))
    asked = rng.choice(("What is the {} planet from the sun?", "Name the {} planet."))
    place = ORDINALS[index]
    return (
        asked.format(place),
        f"The {place} planet is {WORLD['planets'][index]}.",
        f"We need number {index + 1}.",
    )


MAKERS = (_capitals, _capitals, _opposites, _colours, _legs, _orders, _planets)


def draw_fact(rng: random.Random) -> tuple[str, str, str]:
    """A question, its answer and a short reasoning."""
    return rng.choice(MAKERS)(rng)
