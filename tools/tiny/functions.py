"""Functions that the dialogues offer: their schemas, and uses of each drawn at random."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.tiny.errands import NAMES, WORDS
from tools.tiny.world import WORLD

CITIES = [row[1] for row in WORLD["capitals"]]
CITIES_ZH = [row[3] for row in WORLD["capitals"]]
SKIES = {"sunny": "晴", "rainy": "雨", "cloudy": "多云", "snowy": "雪"}
MONEY = ["USD", "EUR", "GBP", "JPY", "CNY", "CHF"]

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
STRINGS: Schema = {"type": "array", "items": STRING}


@dataclass(frozen=True)
class Use:
    """One call: what the user says, the arguments, what the tool returns, what is then said."""

    request: str
    name: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    answer: str


@dataclass(frozen=True)
class Function:
    """A schema together with the maker of its uses."""

    name: str
    description: str
    properties: Schema
    required: tuple[str, ...]
    draw: Callable[[random.Random], Use]

    def schema(self) -> Schema:
        """The entry of an OpenAI ``tools`` list."""
        parameters = {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
        }
        about = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": about}


def _weather(rng: random.Random) -> Use:
    index, degrees = rng.randrange(len(CITIES)), rng.randrange(-9, 36)
    sky = rng.choice(list(SKIES))
    if rng.random() < 0.25:
        city = CITIES_ZH[index]
        asked = rng.choice(("{}的天气怎么样？", "请查一下{}的天气。", "今天{}天气如何？"))
        answer = f"{city}现在是{SKIES[sky]}，{degrees} 度。"
    else:
        city = CITIES[index]
        asked = rng.choice(
            (
                "What is the weather in {}?",
                "How is the weather in {}?",
                "Weather in {}?",
                "Is it raining in {}?",
                "Tell me the weather in {} please.",
            )
        )
        answer = f"It is {sky} in {city}, {degrees} degrees."
    result = {"sky": sky, "degrees": degrees}
    return Use(asked.format(city), "get_weather", {"city": city}, result, answer)


def _forecast(rng: random.Random) -> Use:
    city, days, unit = (
        rng.choice(CITIES),
        rng.randrange(2, 10),
        rng.choice(("celsius", "fahrenheit")),
    )
    asked = rng.choice(
        (
            "Give me the forecast for {} for {} days in {}.",
            "What will the weather be in {} over {} days, in {}?",
        )
    )
    sky = rng.choice(list(SKIES))
    arguments = {"city": city, "days": days, "unit": unit}
    answer = f"The next {days} days in {city} will be {sky}."
    return Use(asked.format(city, days, unit), "get_forecast", arguments, {"sky": sky}, answer)


def _add(rng: random.Random) -> Use:
    a, b = rng.randrange(1000), rng.randrange(1000)
    asked = rng.choice(("Add {} and {} with the tool.", "Use the tool to add {} and {}."))
    answer = f"The sum is {a + b}."
    return Use(asked.format(a, b), "add_numbers", {"a": a, "b": b}, {"sum": a + b}, answer)


def _convert(rng: random.Random) -> Use:
    (source, target), amount = (
        rng.sample(MONEY, 2),
        rng.choice((rng.randrange(1, 500), rng.randrange(10, 999) / 10)),
    )
    got = rng.randrange(1, 900)
    asked = rng.choice(("Convert {} {} to {}.", "How much is {} {} in {}?", "把 {} {} 换成 {}。"))
    arguments = {"amount": amount, "source": source, "target": target}
    answer = f"{amount} {source} are {got} {target}."
    return Use(
        asked.format(amount, source, target), "convert_currency", arguments, {"amount": got}, answer
    )


def _event(rng: random.Random) -> Use:
    title, people = rng.choice(WORDS), rng.sample(NAMES, rng.randrange(1, 4))
    date = f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
    asked = rng.choice(
        ("Plan the event {} on {} with {}.", "Create an event called {} on {} for {}.")
    )
    arguments = {"title": title, "date": date, "people": people}
    answer = f"The event {title} is planned for {date}."
    return Use(
        asked.format(title, date, " and ".join(people)),
        "create_event",
        arguments,
        {"ok": True},
        answer,
    )


def _message(rng: random.Random) -> Use:
    name, text = rng.choice(NAMES), " ".join(rng.sample(WORDS, rng.randrange(2, 6)))
    asked = rng.choice(("Send {} the message: {}", "Write to {}: {}", "Tell {} this: {}"))
    return Use(
        asked.format(name, text),
        "send_message",
        {"to": name, "text": text},
        {"ok": True},
        f"The message to {name} is sent.",
    )


def _search(rng: random.Random) -> Use:
    query, limit = " ".join(rng.sample(WORDS, rng.randrange(1, 4))), rng.randrange(1, 20)
    asked = rng.choice(("Search for {}, at most {} results.", "Find {} and show up to {} hits."))
    found = rng.randrange(1, limit + 1)
    return Use(
        asked.format(query, limit),
        "search_documents",
        {"query": query, "limit": limit},
        {"found": found},
        f"I found {found} documents about {query}.",
    )


def _alarm(rng: random.Random) -> Use:
    time, daily = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}", rng.random() < 0.5
    asked = rng.choice(("Set an alarm for {}, {}.", "Wake me at {}, {}."))
    words = "every day" if daily else "only once"
    return Use(
        asked.format(time, words),
        "set_alarm",
        {"time": time, "daily": daily},
        {"ok": True},
        f"The alarm is set for {time}.",
    )


def _table(rng: random.Random) -> Use:
    place, people, outdoor = rng.choice(WORDS).title(), rng.randrange(1, 13), rng.random() < 0.5
    note = rng.choice(WORDS)
    side = "outside" if outdoor else "inside"
    asked = rng.choice(
        (
            "Book a table at {} for {} people, {}, with the note {}.",
            "Reserve at {} for {}, {}, note: {}.",
        )
    )
    arguments = {"place": place, "people": people, "options": {"outdoor": outdoor, "note": note}}
    return Use(
        asked.format(place, people, side, note),
        "book_table",
        arguments,
        {"ok": True},
        f"The table at {place} for {people} is booked.",
    )


def _draw(rng: random.Random) -> Use:
    shape, colours = (
        rng.choice(("square", "circle", "star")),
        rng.sample(("red", "green", "blue", "black"), 2),
    )
    width, height = rng.randrange(1, 99), rng.randrange(1, 99)
    asked = rng.choice(
        ("Draw a {} of {} by {} in {} and {}.", "Paint a {} that is {} by {} in {} and {}.")
    )
    arguments = {"shape": shape, "size": {"width": width, "height": height}, "colours": colours}
    return Use(
        asked.format(shape, width, height, *colours),
        "draw_shape",
        arguments,
        {"ok": True},
        f"The {shape} is drawn.",
    )


def _time(rng: random.Random) -> Use:
    city, time = rng.choice(CITIES), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    asked = rng.choice(
        ("What time is it in {}?", "Give me the time in {}.", "Which time do they have in {}?")
    )
    return Use(
        asked.format(city), "get_time", {"city": city}, {"time": time}, f"It is {time} in {city}."
    )


def _users(rng: random.Random) -> Use:
    count = rng.randrange(1, 400)
    asked = rng.choice(
        (
            "How many users are online?",
            "Count the users.",
            "Show the number of users.",
            "Are there users online now?",
            "现在有多少用户？",
        )
    )
    return Use(asked, "count_users", {}, {"users": count}, f"{count} users are online.")


_SIZE = {
    "type": "object",
    "properties": {"width": INTEGER, "height": INTEGER},
    "required": ["width", "height"],
}
_OPTIONS = {"type": "object", "properties": {"outdoor": BOOLEAN, "note": STRING}}
_UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}

CATALOGUE = (
    Function("get_weather", "Current weather of a city", {"city": STRING}, ("city",), _weather),
    Function(
        "get_forecast",
        "Weather of the coming days",
        {"city": STRING, "days": INTEGER, "unit": _UNIT},
        ("city", "days"),
        _forecast,
    ),
    Function("add_numbers", "Add two numbers", {"a": INTEGER, "b": INTEGER}, ("a", "b"), _add),
    Function(
        "convert_currency",
        "Convert money",
        {"amount": NUMBER, "source": STRING, "target": STRING},
        ("amount", "source", "target"),
        _convert,
    ),
    Function(
        "create_event",
        "Plan an event",
        {"title": STRING, "date": STRING, "people": STRINGS},
        ("title", "date", "people"),
        _event,
    ),
    Function(
        "send_message", "Send a message", {"to": STRING, "text": STRING}, ("to", "text"), _message
    ),
    Function(
        "search_documents",
        "Search documents",
        {"query": STRING, "limit": INTEGER},
        ("query",),
        _search,
    ),
    Function("set_alarm", "Set an alarm", {"time": STRING, "daily": BOOLEAN}, ("time",), _alarm),
    Function(
        "book_table",
        "Book a table",
        {"place": STRING, "people": INTEGER, "options": _OPTIONS},
        ("place", "people"),
        _table,
    ),
    Function(
        "draw_shape",
        "Draw a shape",
        {"shape": STRING, "size": _SIZE, "colours": STRINGS},
        ("shape", "size"),
        _draw,
    ),
    Function("get_time", "Local time of a city", {"city": STRING}, ("city",), _time),
    Function("count_users", "Number of users online", {}, (), _users),
)

VERBS = [
    "get",
    "set",
    "find",
    "make",
    "open",
    "move",
    "read",
    "save",
    "start",
    "stop",
    "show",
    "check",
]
TYPES = (STRING, STRING, INTEGER, BOOLEAN)


def invent(rng: random.Random) -> Function:
    """A function that no other dialogue has, so that copying from the schema is learned."""
    name = f"{rng.choice(VERBS)}_{rng.choice(WORDS)}"
    keys = rng.sample(WORDS, rng.randrange(1, 4))
    properties = {key: rng.choice(TYPES) for key in keys}

    def draw(rng: random.Random) -> Use:
        arguments = {key: _value(rng, schema) for key, schema in properties.items()}
        words = [
            f"{key} {value if isinstance(value, str) else json.dumps(value)}"
            for key, value in arguments.items()
        ]
        asked = rng.choice(("Call {} with {}.", "Use {} with {}.", "Run {}: {}."))
        said = name.replace("_", " ") if rng.random() < 0.4 else name
        return Use(
            asked.format(said, " and ".join(words)), name, arguments, {"ok": True}, "It is done."
        )

    return Function(name, name.replace("_", " ").capitalize(), properties, tuple(keys), draw)


def _value(rng: random.Random, schema: Schema) -> Any:
    if schema is INTEGER:
        return rng.randrange(1000)
    if schema is BOOLEAN:
        return rng.random() < 0.5
    return rng.choice((rng.choice(WORDS), rng.choice(NAMES), rng.choice(CITIES)))
