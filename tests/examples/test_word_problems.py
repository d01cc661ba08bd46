"""The word problems of the examples: the files are what their program makes, and a second way finds every answer.

The second way reads the quantities from the text. It counts, simulates or tries out where the program has a formula.
"""

import importlib.util
import json
import re
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import combinations, count, product
from pathlib import Path
from random import Random

import pytest

from agent_rl.environments.maths.rewards import answers_equal

FOLDER = Path(__file__).parent.parent.parent / "examples" / "word_problems"
TRAINING, HELD_OUT = ("whole_numbers.jsonl", "amounts.jsonl"), "held_out.jsonl"
ROWS = {
    name: [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    for name in (*TRAINING, HELD_OUT)
}
ALL = [row for rows in ROWS.values() for row in rows]
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

SPEC = importlib.util.spec_from_file_location("word_problems_make", FOLDER / "make.py")
program = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(program)
FORMS = program.sentence_forms()


def names(kind: str) -> list[str]:
    """The quantities of a kind, in the order in which its second way takes them."""
    return list(next(found[0] for seed in count() if (found := program.KINDS[kind](Random(seed)))))


def read(kind: str, text: str) -> list[Fraction | str]:
    """The quantities of a problem, which stand where its sentence form has their names."""
    for form in FORMS[kind]:
        pattern = re.sub(
            r"\\{([a-z_]+)\\}",
            r"(?P<\1>\\S+(?: [AP]M)?)",
            re.sub(r"\\{(?:[ABC]|[sS]he|her)\\}", r"\\w+", re.escape(form)),
        )
        if match := re.fullmatch(pattern, text):
            found = [match[name].removeprefix("$") for name in names(kind)]
            return [each if re.search("[A-Za-z]", each) else Fraction(each) for each in found]
    raise AssertionError(text)


def first(found):
    return next(iter(found))


def whole(up_to, fits):
    """The one whole number up to a bound that fits."""
    (found,) = (number for number in range(int(up_to) + 1) if fits(number))
    return found


def moment(text):
    return datetime.strptime(text, "%I:%M %p")  # noqa: DTZ007 a clock on a wall has no zone


def said(moment):
    return moment.strftime("%I:%M %p").removeprefix("0")


def dollars(amount):
    return f"{float(amount):.2f}"


def pour(capacity, start, inflow, outflow):
    minutes = 0
    while start < capacity:
        start, minutes = start + inflow - outflow, minutes + 1
    assert start == capacity
    return minutes


def climb(depth, up, down):
    height, day = up, 1
    while height < depth:
        height, day = height - down + up, day + 1
    return day


def meet(one, other, start):
    minutes = first(passed for passed in count(1) if passed % one == 0 == passed % other)
    return said(moment(start) + timedelta(minutes=minutes))


def stay(start, end):
    hours, minutes = divmod((moment(end) - moment(start)).seconds // 60, 60)
    return f"{hours} hours {minutes} minutes"


def laid(length, width, side):
    return len(list(product(range(0, int(100 * length), int(side)), range(0, int(100 * width), int(side)))))


def next_day(day, days):
    for _ in range(int(days)):
        day = WEEK[(WEEK.index(day) + 1) % 7]
    return day


SOLVE = {
    "seats": lambda rows, each, taken: len(list(product(range(int(rows)), range(int(each))))) - taken,
    "leftover": lambda items, each: items - each * whole(items, lambda n: n * each <= items < (n + 1) * each),
    "trips": lambda people, each: first(n for n in count() if n * each >= people),
    "stamps": lambda start, given, packs, size: start + sum([size] * int(packs)) - given,
    "three_friends": lambda one, times, fewer: sum((one, one * times, one * times - fewer)),
    "wages": lambda hours, days, wage, weeks: sum(hours * wage for _ in range(int(days * weeks))),
    "saving": lambda price, have, weekly: first(n for n in count() if have + n * weekly >= price),
    "ages": lambda child, parent, times: whole(99, lambda n: parent + n == times * (child + n)),
    "number_puzzle": lambda factor, plus, result: (result - plus) / factor,
    "heads_and_legs": lambda heads, legs: whole(heads, lambda n: 4 * n + 2 * (heads - n) == legs),
    "fence": lambda length, gap: len(range(0, int(length) + 1, int(gap))),
    "field": lambda perimeter, length: f"{(perimeter / 2 - length) * length} square metres",
    "tiles": laid,
    "apart": lambda fast, slow, hours: fast * hours + slow * hours,
    "consecutive": lambda many, total: total / many + (many - 1) / 2,
    "both_leave": meet,
    "ribbon": lambda one, other: max(n for n in range(1, int(other) + 1) if one % n == 0 == other % n),
    "league": lambda teams, times: times * len(list(combinations(range(int(teams)), 2))),
    "outfits": lambda *choices: len(list(product(*(range(int(choice)) for choice in choices)))),
    "rising_rows": lambda one, more, rows: sum(one + more * row for row in range(int(rows))),
    "average_needed": lambda tests, mean, goal: whole(100, lambda n: (tests * mean + n) / (tests + 1) == goal),
    "discount": lambda price, percent: dollars(price - price * percent / 100),
    "tank": pour,
    "recipe": lambda servings, wanted, cups: cups / servings * wanted,
    "book": lambda one, other: 1 - one - other * (1 - one),
    "urn": lambda red, blue, green: 1 - red / (red + blue + green),
    "together": lambda one, other: 1 / (1 / one + 1 / other),
    "ratio": lambda total, large, small: total * large / (large + small) - total * small / (large + small),
    "film": lambda start, minutes: said(moment(start) + timedelta(minutes=int(minutes))),
    "journey": stay,
    "rope": lambda length, pieces, each: f"{float((100 * length - pieces * each) / 100):g} metres",
    "speed": lambda distance, hours, minutes: f"{distance / (hours + minutes / 60)} km/h",
    "shopping": lambda many, few, one, other, note: dollars(note - sum([one] * int(many)) - sum([other] * int(few))),
    "plans": lambda low, dear, high, cheap: whole(99, lambda n: low + n * dear == high + n * cheap),
    "interest": lambda total, rate, years: dollars(sum(total / 100 * rate for _ in range(int(years)))),
    "temperature": lambda start, up, down: f"{start + up - down} °C",
    "snail": climb,
    "weekday": next_day,
    "map_scale": lambda scale, length: f"{float(length * scale) / 1000:g} kilometres",
    "blend": lambda one, other, dear, cheap: dollars((one * dear + other * cheap) / (one + other)),
}
"""The answer once more, counted, simulated or tried out where the program has a formula."""


def test_the_files_are_what_the_program_makes(tmp_path):
    program.main(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in FOLDER.glob("*.jsonl")
    }


@pytest.mark.parametrize("kind", sorted(SOLVE))
def test_every_answer_is_found_again_from_the_text(kind):
    rows = [row for row in ALL if row["kind"] == kind]
    assert len(rows) == 12
    for row in rows:
        answer = str(SOLVE[kind](*read(kind, row["problem"])))
        assert row["answer"].replace("$", "") in {answer, answer.removesuffix(".00")}, row


def test_kinds_are_many_and_each_is_put_in_several_ways():
    assert set(program.KINDS) == set(FORMS) == set(SOLVE)
    assert len(SOLVE) >= 25
    for kind, forms in FORMS.items():
        assert len(set(forms)) >= 3, kind


def test_no_held_out_problem_is_a_training_problem_in_other_words():
    assert len({row["id"] for row in ALL}) == len({row["problem"] for row in ALL}) == len(ALL) >= 300
    quantities = {(row["kind"], *map(str, read(row["kind"], row["problem"]))) for row in ALL}
    assert len(quantities) == len(ALL)
    assert {row["kind"] for row in ROWS[HELD_OUT]} == set(SOLVE)
    assert all(row["answer"].lstrip("-").isdigit() for row in ROWS[TRAINING[0]])
    assert not any(row["answer"].lstrip("-").isdigit() for row in ROWS[TRAINING[1]])


def test_sentences_read_well():
    for row in ALL:
        text = row["problem"]
        assert text[0].isupper() or text[0].isdigit(), text
        assert text[-1] in ".?", text
        assert not re.search(r"[{}]|  |\b(?<!line )(?<!Machine )1 [a-z]+s\b", text), text
        assert len(text) < 300


def denominator_doubled(gold: str) -> str:
    return f"{2 * Fraction(gold).numerator}/{2 * Fraction(gold).denominator}"


def other_half_of_the_day(gold: str) -> str:
    return gold[:-2] + {"AM": "PM", "PM": "AM"}[gold[-2:]]


OTHERWISE = {
    "recipe": (lambda gold: rf"\frac{{{gold.replace('/', '}{')}}}", lambda gold: f"-{gold}"),
    "book": (denominator_doubled, lambda gold: f"1{gold}"),
    "shopping": (lambda gold: rf"\{gold}", lambda gold: gold.replace("$", "€")),
    "blend": (lambda gold: f"{gold[1:]} dollars", lambda gold: f"{gold[1:]} cents"),
    "film": (lambda gold: rf"\text{{{gold}}}", other_half_of_the_day),
    "journey": (lambda gold: rf"\text{{{gold}}}", lambda gold: gold.replace("hours", "days")),
    "rope": (lambda gold: gold.replace("metres", r"\text{ m}"), lambda gold: gold.replace("metres", "cm")),
    "speed": (lambda gold: gold.replace("km/h", r"\text{ km/h}"), lambda gold: gold.replace("km/h", "m/s")),
    "field": (lambda gold: gold.replace("square metres", r"\text{ m}^2"), lambda gold: gold.replace("metres", "cm")),
    "weekday": (lambda gold: rf"\text{{{gold}}}", lambda gold: WEEK[WEEK.index(gold) - 1]),
    "temperature": (lambda gold: gold.replace(" °C", r"^\circ\text{C}"), lambda gold: gold.replace(" °", "1 °")),
}
"""By kind, how an answer is written otherwise, and an answer that is not the same."""


@pytest.mark.parametrize("kind", OTHERWISE)
def test_the_checker_knows_an_answer_that_is_written_otherwise(kind):
    same, other = OTHERWISE[kind]
    for row in ALL:
        if row["kind"] == kind:
            assert answers_equal(row["answer"], row["answer"])
            assert answers_equal(row["answer"], same(row["answer"])), row
            assert not answers_equal(row["answer"], other(row["answer"])), row
