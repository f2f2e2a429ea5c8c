r"""Completions and the message that each stands for, written by hand from the format's rules.

In the texts ``~`` after a marker's name stands for the checkpoint's suffix, ``!`` for the bare
spelling and ``?`` for a foreign one; cases with the last two make sense for a suffixed model only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "options": {"type": "object"},
                    "either": {"type": ["integer", "string"]},
                    "maybe": {"type": ["string", "null"]},
                    "choice": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "free": {"description": "no type at all"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time"}},
]


class Case(NamedTuple):
    name: str
    text: str
    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str | None = None
    finish: str = ""  # of the API; empty: "tool_calls" if there are calls, else "stop"
    open: bool = False  # the prompt ended with <think>
    tools: bool = True
    cut: bool = False
    malformed: int = 0


def pair(key: str, value: str) -> str:
    return f"<arg_key~>{key}</arg_key~>\n<arg_value~>{value}</arg_value~>\n"


def call(name: str, *pairs: str) -> str:
    return f"<tool_call~>{name}<tool_sep~>\n{''.join(pairs)}</tool_call~>\n"


def group(*calls: str) -> str:
    return f"<tool_calls~>\n{''.join(calls)}</tool_calls~>"


CITY = "<arg_key~>city</arg_key~>\n<arg_value~>"  # an open string value
DAYS = "<arg_key~>days</arg_key~>\n<arg_value~>"  # an open integer value
HEAD = "<tool_calls~>\n<tool_call~>look<tool_sep~>\n"  # an open call
TAIL = "</tool_call~>\n</tool_calls~>"
EMPTY = (("look", "{}"),)
TIME = (("time", "{}"),)


def one(arguments: str) -> tuple[tuple[str, str], ...]:
    return (("look", arguments),)


def typed(name: str, key: str, value: str, arguments: str) -> Case:
    return Case(f"type: {name}", group(call("look", pair(key, value))), calls=one(arguments))


PLAIN = [
    Case("nothing", ""),
    Case("text", "Hello there.", "Hello there."),
    Case("text keeps its whitespace", "\n Hi \n", "\n Hi \n"),
    Case("whitespace alone without calls is text", " \n", " \n"),
    Case("cut text", "Hel", "Hel", cut=True, finish="length"),
    Case("reasoning then text", "why</think~>so", "so", reasoning="why", open=True),
    Case("reasoning keeps its whitespace", "\nwhy\n</think~>\n\nso\n", "\n\nso\n",
         reasoning="\nwhy\n", open=True),
    Case("empty reasoning is null", "</think~>so", "so", open=True),
    Case("reasoning that never ends", "why and", reasoning="why and", open=True, cut=True,
         finish="length"),
    Case("reasoning that stops", "why and", reasoning="why and", open=True),
    Case("leading think is swallowed", "<think~>why</think~>so", "so", reasoning="why", open=True),
    Case("second think while open is text", "<think~><think~>a</think~>b", "b",
         reasoning="<think~>a", open=True),
    Case("later think while open is text", "a<think~>b</think~>c", "c", reasoning="a<think~>b",
         open=True),
    Case("think under no_think", "<think~>why</think~>so", "so", reasoning="why"),
    Case("think in content reopens", "a<think~>b</think~>c", "ac", reasoning="b"),
    Case("reopened until the end", "a<think~>b", "a", reasoning="b"),
    Case("stray think end is dropped", "a</think~>b</think~>c", "abc"),
    Case("markup in reasoning is text", f"x{group(call('time'))}y</think~>z", "z",
         reasoning=f"x{group(call('time'))}y", open=True),
    Case("no tools: markup is content", group(call("look", pair("city", "Rome"))),
         group(call("look", pair("city", "Rome"))), tools=False),
    Case("no tools: reasoning still parsed", "a</think~><tool_call~>b", "<tool_call~>b",
         reasoning="a", open=True, tools=False),
    Case("half a marker at the end is text", "see <tool_cal", "see <tool_cal"),
    Case("half a think end is reasoning", "a</thi", reasoning="a</thi", open=True),
    Case("almost markers are text", "<think <tool_call/> <arg_keys~> </tool_sep~> <>",
         "<think <tool_call/> <arg_keys~> </tool_sep~> <>"),
]  # fmt: skip

CALLS = [
    Case("one call", group(call("look", pair("city", "Rome"), pair("days", "3"))),
         calls=one('{"city": "Rome", "days": 3}')),
    Case("text before a call", f"Wait.\n{group(call('time'))}", "Wait.\n", TIME),
    Case("reasoning, text, call", f"r</think~>t{group(call('time'))}", "t", TIME,
         "r", open=True),
    Case("whitespace before a group is dropped", f"r</think~>\n\n{group(call('time'))}\n",
         calls=TIME, reasoning="r", open=True),
    Case("two calls", group(call("look", pair("city", "A")), call("look", pair("city", "B"))),
         calls=one('{"city": "A"}') + one('{"city": "B"}')),
    Case("call without arguments", group(call("time")), calls=TIME),
    Case("no whitespace at all",
         "<tool_calls~><tool_call~>look<tool_sep~><arg_key~>city</arg_key~><arg_value~>A"
         "</arg_value~></tool_call~><tool_call~>time<tool_sep~></tool_call~></tool_calls~>",
         calls=(("look", '{"city": "A"}'), ("time", "{}"))),
    Case("much whitespace",
         "<tool_calls~> \n\t<tool_call~> look \n<tool_sep~>\n\n<arg_key~> city\n</arg_key~>  "
         "<arg_value~> A </arg_value~> \n </tool_call~>\n\n</tool_calls~> \n",
         calls=one('{"city": " A "}')),
    Case("unknown tool is kept", group(call("fly", pair("to", "3"))),
         calls=(("fly", '{"to": "3"}'),)),
    Case("unknown key is a string", group(call("look", pair("x", "3"))), calls=one('{"x": "3"}')),
    Case("empty string", group(call("look", pair("city", ""))), calls=one('{"city": ""}')),
    Case("text between calls",
         f"<tool_calls~>{call('time')}and{call('time')}</tool_calls~>", "\nand",
         TIME * 2),
    Case("text after the group", f"{group(call('time'))}\nDone.", "\nDone.", TIME),
    Case("two groups", f"a{group(call('time'))} {group(call('look'))}b", "ab",
         (("time", "{}"), ("look", "{}"))),
    Case("thinking between calls", f"<tool_calls~>{call('time')}<think~>hm</think~>{call('time')}"
         "</tool_calls~>", None, TIME * 2, "hm"),
    Case("empty group", "<tool_calls~>\n</tool_calls~>"),
    Case("cut after a whole call", f"<tool_calls~>{call('time')}", None, TIME,
         finish="length", cut=True),
    Case("escapes",
         group(call("look", pair("city", 'a"b\\c\n\t\r/\x08\x0c'))),
         calls=one('{"city": "a\\"b\\\\c\\n\\t\\r/\\b\\f"}')),
    Case("control characters", group(call("look", pair("city", "\x00\x1f\x7f\u2028"))),
         calls=one('{"city": "\\u0000\\u001f\x7f\u2028"}')),
    Case("wide characters", group(call("look", pair("città", "東京 🗼"))),
         calls=one('{"città": "東京 🗼"}')),
    Case("lone surrogates are escaped", group(call("look", pair("city", "a\ud83db\udc00"))),
         calls=one('{"city": "a\\ud83db\\udc00"}')),
    Case("angle brackets and JSON in a string",
         group(call("look", pair("city", '<b>{"a": [1]}</b> </arg'))),
         calls=one('{"city": "<b>{\\"a\\": [1]}</b> </arg"}')),
]  # fmt: skip

TYPES = [
    typed("integer", "days", " 12\n", '{"days": 12}'),
    typed("integer from 1.2", "days", "1.2", '{"days": 1.2}'),
    typed("integer from words", "days", "two", '{"days": "two"}'),
    typed("integer beyond floats", "days", "9" * 40, '{"days": ' + "9" * 40 + "}"),
    typed("integer beyond Python's limit", "days", "9" * 5000, '{"days": "' + "9" * 5000 + '"}'),
    typed("number", "ratio", "2.50", '{"ratio": 2.5}'),
    typed("number, whole", "ratio", "2", '{"ratio": 2}'),
    typed("number with exponent", "ratio", "1E3", '{"ratio": 1000.0}'),
    typed("number too large", "ratio", "1e999", '{"ratio": "1e999"}'),
    typed("number NaN", "ratio", "NaN", '{"ratio": "NaN"}'),
    typed("boolean", "exact", "True", '{"exact": true}'),
    typed("boolean from a number", "exact", "1", '{"exact": 1}'),
    typed("boolean from a word", "exact", "yes", '{"exact": "yes"}'),
    typed("array", "tags", '["a", 1, null]', '{"tags": ["a", 1, null]}'),
    typed("array of Python", "tags", "['a', True]", '{"tags": ["a", true]}'),
    typed("array with NaN", "tags", "[NaN]", '{"tags": "[NaN]"}'),
    typed("array with infinity", "tags", "[-Infinity]", '{"tags": "[-Infinity]"}'),
    typed("tuple", "tags", "(1, 2)", '{"tags": "(1, 2)"}'),
    typed("set", "tags", "{1, 2}", '{"tags": "{1, 2}"}'),
    typed("ellipsis", "tags", "...", '{"tags": "..."}'),
    typed("tuple inside", "tags", "[(1, 2)]", '{"tags": "[(1, 2)]"}'),
    typed("bytes", "tags", "[b'a']", "{\"tags\": \"[b'a']\"}"),
    typed("broken array", "tags", "[1, ", '{"tags": "[1, "}'),
    typed("object", "options", '{"a": {"b": [1, {"c": "é"}]}}',
          '{"options": {"a": {"b": [1, {"c": "é"}]}}}'),
    typed("object with spacing of its own", "options", '{"a":1,\n"b":  2}',
          '{"options": {"a": 1, "b": 2}}'),
    typed("object with number keys", "options", "{1: 2}", '{"options": "{1: 2}"}'),
    typed("object with lone surrogate", "options", '{"a": "\\ud800"}',
          '{"options": {"a": "\\ud800"}}'),
    typed("100 levels", "tags", "[" * 100 + "]" * 100, '{"tags": ' + "[" * 100 + "]" * 100 + "}"),
    typed("101 levels", "tags", "[" * 101 + "]" * 101,
          '{"tags": "' + "[" * 101 + "]" * 101 + '"}'),
    typed("endless levels", "tags", "[" * 30_000, '{"tags": "' + "[" * 30_000 + '"}'),
    typed("either: a number", "either", "7", '{"either": 7}'),
    typed("either: a word", "either", "seven", '{"either": "seven"}'),
    typed("null stays text beside string", "maybe", "null", '{"maybe": "null"}'),
    typed("anyOf: number", "choice", "4", '{"choice": 4}'),
    typed("anyOf: null", "choice", "null", '{"choice": null}'),
    typed("untyped", "free", "7", '{"free": "7"}'),
]  # fmt: skip

# Rule 3: where a value ends, and rule 4: what may be missing.
BROKEN = [
    Case("duplicate key: the first counts",
         group(call("look", pair("city", "A"), pair("city", "B"), pair("days", "1"))),
         calls=one('{"city": "A", "days": 1}'), malformed=1),
    Case("value end as data", f"{HEAD}{CITY}a</arg_value~>b</arg_value~>\n{TAIL}",
         calls=one('{"city": "a</arg_value~>b"}')),
    Case("value end and half a marker as data", 
         f"{HEAD}{CITY}a</arg_value~></tool_</arg_value~>{TAIL}",
         calls=one('{"city": "a</arg_value~></tool_"}')),
    Case("a run of value ends counts as one",
         f"{HEAD}{CITY}a</arg_value~></arg_value~>\n</arg_value~>\n{TAIL}",
         calls=one('{"city": "a"}'), malformed=1),
    Case("a run inside a value is data",
         f"{HEAD}{CITY}a</arg_value~></arg_value~>b</arg_value~>{TAIL}",
         calls=one('{"city": "a</arg_value~></arg_value~>b"}')),
    Case("other markers as data",
         f"{HEAD}{CITY}<tool_call~><arg_key~>k</arg_key~><think~></think~><tool_sep~><tool_calls~>"
         f"</arg_value~>{TAIL}",
         calls=one('{"city": "<tool_call~><arg_key~>k</arg_key~><think~></think~><tool_sep~>'
                   '<tool_calls~>"}')),
    Case("value ends at the next call", f"{HEAD}{CITY}a</arg_value~>\n{call('time')}</tool_calls~>",
         calls=one('{"city": "a"}') + TIME, malformed=1),
    Case("value ends at the end of the group", f"{HEAD}{CITY}a</arg_value~>\n</tool_calls~>",
         calls=one('{"city": "a"}'), malformed=1),
    Case("value ends at the end", f"{HEAD}{DAYS}4</arg_value~> ", calls=one('{"days": 4}'),
         malformed=1),
    Case("call end as data", f"{HEAD}{CITY}a</tool_call~>b</arg_value~>\n{TAIL}",
         calls=one('{"city": "a</tool_call~>b"}'), malformed=1),
    Case("group end as data", f"{HEAD}{CITY}{TAIL}</arg_value~>\n{TAIL}",
         calls=one('{"city": "</tool_call~>\\n</tool_calls~>"}'), malformed=1),
    Case("call end in an open value ends the call",
         f"{HEAD}{CITY}a</tool_call~>\n{call('time')}</tool_calls~>\nbye", "\nbye",
         one('{"city": "a"}') + TIME, malformed=1),
    Case("call end in an open number drops it", f"{HEAD}{pair('city', 'A')}{DAYS}4{TAIL}",
         calls=one('{"city": "A"}'), malformed=1),
    Case("several open values, each ended by its call",
         f"{HEAD}{CITY}a</tool_call~>\n<tool_call~>look<tool_sep~>{CITY}b</tool_call~>\n"
         f"<tool_call~>look<tool_sep~>{CITY}c{TAIL}x", "x",
         one('{"city": "a"}') + one('{"city": "b"}') + one('{"city": "c"}'), malformed=3),
    Case("group end in an open value", f"{HEAD}{CITY}a</tool_calls~>b", "b",
         one('{"city": "a"}'), malformed=1),
    Case("missing key end", f"{HEAD}<arg_key~>city<arg_value~>A</arg_value~>\n{TAIL}",
         calls=one('{"city": "A"}'), malformed=1),
    Case("missing value begin", f"{HEAD}<arg_key~>days</arg_key~>5</arg_value~>\n{TAIL}",
         calls=one('{"days": 5}'), malformed=1),
    Case("missing value begin, string", f"{HEAD}<arg_key~>city</arg_key~>\nA </arg_value~>{TAIL}",
         calls=one('{"city": "A "}'), malformed=1),
    Case("key without a value", f"{HEAD}<arg_key~>city</arg_key~>\n{TAIL}", calls=EMPTY,
         malformed=1),
    Case("key without a value before a pair",
         f"{HEAD}<arg_key~>city</arg_key~>\n{pair('days', '1')}{TAIL}",
         calls=one('{"days": 1}'), malformed=1),
    Case("key without a value before a call",
         f"{HEAD}<arg_key~>city</arg_key~>\n</tool_call~>\n{call('time')}</tool_calls~>bye", "bye",
         EMPTY + TIME, malformed=1),
    Case("key alone before a call", f"{HEAD}<arg_key~>city{call('time')}</tool_calls~>bye", "bye",
         EMPTY + TIME, malformed=1),
    Case("open value, then an open call",
         f"{HEAD}{CITY}a</tool_call~>\n<tool_call~>look<tool_sep~>{DAYS}1",
         calls=one('{"city": "a"}') + EMPTY, malformed=2),
    Case("broken JSON hides nothing that follows",
         f'{HEAD}{{"a": 1</tool_call~>}}{call("time")}</tool_calls~>', "}", EMPTY + TIME,
         malformed=1),
    Case("key without end or value", f"{HEAD}<arg_key~>city\n{pair('days', '1')}{TAIL}",
         calls=one('{"days": 1}'), malformed=1),
    Case("value without a key", f"{HEAD}<arg_value~>lost</arg_value~>\n{pair('days', '1')}{TAIL}",
         calls=one('{"days": 1}'), malformed=1),
    Case("text before the first pair is dropped", f"{HEAD}so {pair('days', '1')}{TAIL}",
         calls=one('{"days": 1}'), malformed=1),
    Case("text after a value makes its end data", f"{HEAD}{pair('city', 'A')}and {TAIL}",
         calls=one('{"city": "A</arg_value~>\\nand "}'), malformed=1),
    Case("missing call end", f"{HEAD}{pair('days', '1')}{call('time')}</tool_calls~>",
         calls=one('{"days": 1}') + TIME, malformed=1),
    Case("missing separator, pair follows",
         f"<tool_calls~>\n<tool_call~>look\n{pair('city', 'A')}{TAIL}",
         calls=one('{"city": "A"}'), malformed=1),
    Case("missing separator, call ends", f"<tool_calls~>\n<tool_call~>time\n{TAIL}",
         calls=TIME, malformed=1),
    Case("wrong close after the name",
         "<tool_calls~>\n<tool_call~>time</arg_value~>\n</tool_calls~>",
         calls=TIME, malformed=1),
    Case("wrong close, then nothing", "<tool_calls~>\n<tool_call~>time</arg_value~>",
         calls=TIME, malformed=1),
    Case("a line ends the name", f"<tool_calls~>\n<tool_call~>\nlook\nplease<tool_sep~>{TAIL}",
         calls=EMPTY, malformed=1),
    Case("JSON instead of pairs", f'{HEAD}{{"days": 1, "x": {{"y": [2.50]}}}}\n{TAIL}',
         calls=one('{"days": 1, "x": {"y": [2.5]}}'), malformed=1),
    Case("JSON with duplicate keys", f'{HEAD}{{"a": {{"b": 1}}, "a": 2}}{TAIL}',
         calls=one('{"a": {"b": 1}}'), malformed=1),
    Case("JSON with markers in strings", f'{HEAD}{{"a": "\\"}}</tool_call~><arg_key~>"}}{TAIL}',
         calls=one('{"a": "\\"}</tool_call~><arg_key~>"}'), malformed=1),
    Case("JSON without separator", f'<tool_calls~><tool_call~>look\n{{"days": 2}}{TAIL}',
         calls=one('{"days": 2}'), malformed=1),
    Case("JSON with an empty key", f'{HEAD}{{"": "\\\\"}}{TAIL}', calls=one('{"": "\\\\"}'),
         malformed=1),
    Case("empty JSON", f"{HEAD}{{}}{TAIL}", calls=EMPTY, malformed=1),
    Case("cut JSON", f'{HEAD}{{"days": 1', calls=EMPTY, cut=True, finish="length", malformed=1),
    Case("broken JSON", f'{HEAD}{{"days": one}}{TAIL}', calls=EMPTY, malformed=1),
    Case("JSON with NaN", f'{HEAD}{{"days": NaN}}{TAIL}', calls=EMPTY, malformed=1),
    Case("JSON too deep", f'{HEAD}{{"a": {"[" * 100}{"]" * 100}}}{TAIL}', calls=EMPTY, malformed=1),
    Case("JSON with an open string", f'{HEAD}{{"a": "b{TAIL}\nbye', "\nbye", EMPTY, malformed=1),
    Case("JSON that lacks its brace", f'{HEAD}{{"a": 1</tool_call~>\n{call("time")}</tool_calls~>',
         calls=EMPTY + TIME, malformed=1),
    Case("JSON only at the beginning", f'{HEAD}<tool_sep~>x{{"days": 1}}{TAIL}', calls=EMPTY,
         malformed=1),
    Case("JSON after a stray marker", f'{HEAD}<tool_sep~>{{"days": 1}}{TAIL}',
         calls=one('{"days": 1}'), malformed=1),
    Case("no JSON after a broken pair", f'{HEAD}<arg_key~>city</arg_value~>{{"days": 1}}{TAIL}',
         calls=EMPTY, malformed=1),
    Case("empty name makes no call",
         "<tool_calls~>\n<tool_call~> <tool_sep~>\n</tool_call~>\n</tool_calls~>",
         "\n<tool_call~> <tool_sep~>\n</tool_call~>\n", malformed=1),
    Case("empty name before a call", f"<tool_calls~><tool_call~>{call('time')}</tool_calls~>",
         "<tool_call~>", TIME, malformed=1),
    Case("markup out of place in a group", "<tool_calls~></arg_key~></tool_calls~>", "</arg_key~>"),
    Case("a group begun twice", f"<tool_calls~>\n{group(call('time'))}", None, TIME),
    Case("no group end", f"<tool_calls~>\n{call('time')}", calls=TIME),
    Case("no call end", f"{HEAD}{pair('days', '1')}", calls=one('{"days": 1}'), malformed=1),
]  # fmt: skip

LOOSE = [
    Case("call without a group", call("look", pair("city", "A")), None, one('{"city": "A"}'),
         malformed=1),
    Case("calls without a group", f"So:{call('time')}{call('time')}", "So:",
         TIME * 2, malformed=2),
    Case("call with only a group's end", f"{call('time')}</tool_calls~>\n", None,
         TIME, malformed=1),
    Case("call without a group, ended by it", "<tool_call~>time<tool_sep~>\n</tool_calls~>ok", "ok",
         TIME, malformed=1),
    Case("group end in text is text", "a</tool_calls~>b", "a</tool_calls~>b"),
    Case("unknown name without a group is text", call("fly", pair("to", "A")),
         call("fly", pair("to", "A"))),
    Case("a mention is text", "Write <tool_call~> to begin.", "Write <tool_call~> to begin."),
    Case("a mention before a call", f"<tool_call~>!{call('time')}", "<tool_call~>!",
         TIME, malformed=1),
    Case("whole name at the stop", "<tool_call~>time", None, TIME, malformed=1),
    Case("half a name at the stop is text", "<tool_call~>tim", "<tool_call~>tim"),
    Case("half a name when cut is dropped", "a<tool_call~>tim", "a", cut=True, finish="length"),
]  # fmt: skip

CUT = [
    Case("cut in a string", f"{HEAD}{CITY}Ro", calls=one('{"city": "Ro"}')),
    Case("cut before a string", f"{HEAD}{CITY}", calls=one('{"city": ""}')),
    Case("cut in a number", f"{HEAD}{pair('city', 'A')}{DAYS}1", calls=one('{"city": "A"}')),
    Case("cut in a mixed type", f"{HEAD}<arg_key~>either</arg_key~>\n<arg_value~>1", calls=EMPTY),
    Case("cut in an object", f"{HEAD}<arg_key~>options</arg_key~>\n<arg_value~>{{", calls=EMPTY),
    Case("cut after a value", f"{HEAD}{DAYS}1</arg_value~>", calls=one('{"days": 1}')),
    Case("cut after a key", f"{HEAD}<arg_key~>city</arg_key~>", calls=EMPTY),
    Case("cut in a key", f"{HEAD}<arg_key~>ci", calls=EMPTY),
    Case("cut in a name", "<tool_calls~>\n<tool_call~>loo"),
    Case("cut after a name", "<tool_calls~>\n<tool_call~>look"),
    Case("cut after the separator", HEAD, calls=EMPTY),
    Case("cut in a marker", f"{HEAD}{CITY}Ro</arg_va", calls=one('{"city": "Ro</arg_va"}')),
]  # fmt: skip
CUT = [case._replace(cut=True, finish="length") for case in CUT]

STOPPED = [
    Case("stop in a string", f"{HEAD}{CITY}Ro", calls=one('{"city": "Ro"}'), malformed=1),
    Case("stop in a number", f"{HEAD}{DAYS}1", calls=EMPTY, malformed=1),
    Case("stop after a known name", "<tool_calls~>\n<tool_call~>look\n", calls=EMPTY, malformed=1),
    Case("stop after an unknown name", "<tool_calls~>\n<tool_call~>fly", malformed=1),
]  # fmt: skip

CASES = PLAIN + CALLS + TYPES + BROKEN + LOOSE + CUT + STOPPED

# For a model with a suffix: its bare spelling is understood, one spelling to a group.
SPELLING = [
    Case("bare think end", "r</think!>t", "t", reasoning="r", open=True),
    Case("bare group", group(call("look", pair("city", "A"))).replace("~", "!"),
         calls=one('{"city": "A"}')),
    Case("bare markers in a suffixed group are data",
         group(call("look", pair("city", "a</arg_value!></tool_call!>"))),
         calls=one('{"city": "a</arg_value!></tool_call!>"}')),
    Case("suffixed markers in a bare group are data",
         group(call("look", pair("city", "(")), ).replace("~", "!").replace("(", "</arg_value~>"),
         calls=one('{"city": "</arg_value~>"}')),
    Case("a bare call in a suffixed group is text",
         f"<tool_calls~>{call('time').replace('~', '!')}</tool_calls~>",
         "<tool_call!>time<tool_sep!>\n</tool_call!>\n"),
    Case("bare call without a group", call("time").replace("~", "!"), None, TIME,
         malformed=1),
    Case("bare unknown call is text", call("fly").replace("~", "!"), call("fly").replace("~", "!")),
    Case("foreign markers are text", group(call("time")).replace("~", "?") + "</think?>",
         group(call("time")).replace("~", "?") + "</think?>"),
    Case("foreign markers in a value", group(call("look", pair("city", "</arg_value?>"))),
         calls=one('{"city": "</arg_value?>"}')),
]  # fmt: skip
