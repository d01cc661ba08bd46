"""Word problems with checked answers, for the examples: ``python examples/word_problems/make.py`` writes the files.

Each kind of problem has a function here, which draws quantities and computes the answer, and three sentence forms in
``sentences.txt``. No two problems of a kind have the same quantities, so no held-out problem is a training problem in
other words. ``whole_numbers.jsonl`` and ``amounts.jsonl`` (fractions, money, times, weekdays, units) are for training,
``held_out.jsonl`` holds a quarter of every kind. The same program makes the same bytes everywhere.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

FOLDER = Path(__file__).parent
EACH, HELD_OUT = 12, 3
"""Problems of each kind, and how many of them are held out."""
PEOPLE = tuple(
    (name, pronoun)
    for pronoun, names in (
        ("she", "Amina Clara Elif Hanna Ines Leila Mei Nora Priya Ruth Sofia Yuki".split()),
        ("he", "Anton Ben Carlos Daniel Emre Ivan Jonas Kofi Liam Omar Ravi Tomas".split()),
    )
    for name in names
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

Drawn = tuple[dict[str, object], object] | None
"""Quantities by name and the answer; None when the numbers drawn make no good problem."""
KINDS: dict[str, Callable[[random.Random], Drawn]] = {}


def kind(draw: Callable[[random.Random], Drawn]) -> Callable[[random.Random], Drawn]:
    """Enter the function under its name, which is that of its forms."""
    KINDS[draw.__name__] = draw
    return draw


def money(cents: Fraction | int) -> str:
    """An amount of money as people write it: ``$12``, ``$4.50``."""
    whole, rest = divmod(int(cents), 100)
    return f"${whole}.{rest:02}" if rest else f"${whole}"


def price(cents: int) -> str:
    """The same without the sign, which stands in the sentence."""
    return money(cents)[1:]


def clock(minutes: int) -> str:
    """Minutes since midnight as ``9:05 AM``."""
    hour, minute = divmod(minutes % 1440, 60)
    return f"{(hour - 1) % 12 + 1}:{minute:02} {'AM' if hour < 12 else 'PM'}"


def decimal(value: Fraction) -> str:
    """A number with few decimals, exactly."""
    return f"{float(value):.10g}"


@kind
def seats(r: random.Random) -> Drawn:
    rows, each = r.randint(6, 24), r.randint(8, 32)
    taken = r.randint(12, rows * each // 2)
    return {"rows": rows, "each": each, "taken": taken}, rows * each - taken


@kind
def leftover(r: random.Random) -> Drawn:
    items, each = r.randint(60, 400), r.randint(4, 15)
    return ({"items": items, "each": each}, items % each) if items % each else None


@kind
def trips(r: random.Random) -> Drawn:
    people, each = r.randint(70, 480), r.randint(8, 56)
    return ({"people": people, "each": each}, -(-people // each)) if people > 2 * each else None


@kind
def stamps(r: random.Random) -> Drawn:
    start, given, packs, size = r.randint(60, 240), r.randint(12, 58), r.randint(3, 9), r.randint(5, 24)
    return {"start": start, "given": given, "packs": packs, "size": size}, start - given + packs * size


@kind
def three_friends(r: random.Random) -> Drawn:
    first, times, fewer = r.randint(12, 60), r.randint(3, 6), r.randint(4, 30)
    return {"first": first, "times": times, "fewer": fewer}, first + 2 * times * first - fewer


@kind
def wages(r: random.Random) -> Drawn:
    hours, days, wage, weeks = r.randint(3, 8), r.randint(3, 6), r.randint(11, 24), r.randint(2, 9)
    return {"hours": hours, "days": days, "wage": wage, "weeks": weeks}, hours * days * wage * weeks


@kind
def saving(r: random.Random) -> Drawn:
    cost, have, weekly = r.randint(90, 420), r.randint(15, 80), r.randint(6, 25)
    return {"price": cost, "have": have, "weekly": weekly}, -(-(cost - have) // weekly)


@kind
def ages(r: random.Random) -> Drawn:
    child, times, years = r.randint(5, 16), r.randint(2, 3), r.randint(2, 18)
    parent = times * (child + years) - years
    return ({"child": child, "parent": parent, "times": times}, years) if 24 <= parent - child <= 40 else None


@kind
def number_puzzle(r: random.Random) -> Drawn:
    number, factor, plus = r.randint(6, 48), r.randint(3, 12), r.randint(11, 65)
    return {"factor": factor, "plus": plus, "result": number * factor + plus}, number


@kind
def heads_and_legs(r: random.Random) -> Drawn:
    two, four = r.randint(5, 40), r.randint(4, 40)
    return {"heads": two + four, "legs": 2 * two + 4 * four}, four


@kind
def fence(r: random.Random) -> Drawn:
    gap, gaps = r.randint(2, 15), r.randint(9, 45)
    return {"length": gap * gaps, "gap": gap}, gaps + 1


@kind
def field(r: random.Random) -> Drawn:
    length, width = r.randint(15, 90), r.randint(8, 60)
    wanted: dict[str, object] = {"perimeter": 2 * (length + width), "length": length}
    return (wanted, f"{length * width} square metres") if width < length else None


@kind
def tiles(r: random.Random) -> Drawn:
    length, width, side = r.randint(2, 9), r.randint(2, 6), r.choice((10, 20, 25, 40, 50))
    fits = width < length and not (100 * length % side or 100 * width % side)
    return ({"length": length, "width": width, "side": side}, 10000 * length * width // side**2) if fits else None


@kind
def apart(r: random.Random) -> Drawn:
    fast, slow, hours = r.randint(17, 32), r.randint(8, 16), r.randint(2, 6)
    return {"fast": fast, "slow": slow, "hours": hours}, (fast + slow) * hours


@kind
def consecutive(r: random.Random) -> Drawn:
    count, first = r.randint(3, 7), r.randint(10, 150)
    return {"count": count, "total": sum(range(first, first + count))}, first + count - 1


@kind
def both_leave(r: random.Random) -> Drawn:
    first, second, start = r.randint(6, 24), r.randint(8, 36), 5 * r.randint(84, 204)
    again = math.lcm(first, second)
    if not max(first, second) < again <= 180 or math.gcd(first, second) == 1 or first > second:
        return None
    return {"first": first, "second": second, "start": clock(start)}, clock(start + again)


@kind
def ribbon(r: random.Random) -> Drawn:
    piece, first, second = r.randint(6, 35), r.randint(3, 12), r.randint(2, 11)
    if first <= second or math.gcd(first, second) > 1:
        return None
    return {"first": piece * first, "second": piece * second}, piece


@kind
def league(r: random.Random) -> Drawn:
    teams, times = r.randint(5, 20), r.randint(2, 4)
    return {"teams": teams, "times": times}, times * teams * (teams - 1) // 2


@kind
def outfits(r: random.Random) -> Drawn:
    shirts, trousers, hats = r.randint(3, 12), r.randint(3, 9), r.randint(2, 6)
    return {"shirts": shirts, "trousers": trousers, "hats": hats}, shirts * trousers * hats


@kind
def rising_rows(r: random.Random) -> Drawn:
    first, more, rows = r.randint(6, 20), r.randint(2, 5), r.randint(5, 16)
    return {"first": first, "more": more, "rows": rows}, rows * first + more * rows * (rows - 1) // 2


@kind
def average_needed(r: random.Random) -> Drawn:
    tests, average, goal = r.randint(3, 9), r.randint(60, 85), r.randint(62, 90)
    needed = (tests + 1) * goal - tests * average
    return ({"tests": tests, "average": average, "goal": goal}, needed) if goal > average and needed <= 100 else None


@kind
def discount(r: random.Random) -> Drawn:
    cost, percent = r.randint(18, 240), r.choice((5, 10, 12, 15, 20, 25, 30, 35, 40, 45))
    return {"price": cost, "percent": percent}, money(cost * (100 - percent))


@kind
def tank(r: random.Random) -> Drawn:
    inflow, outflow, minutes, start = r.randint(12, 40), r.randint(3, 11), r.randint(8, 60), 10 * r.randint(2, 15)
    capacity = start + minutes * (inflow - outflow)
    return {"capacity": capacity, "start": start, "inflow": inflow, "outflow": outflow}, minutes


@kind
def recipe(r: random.Random) -> Drawn:
    servings, wanted, cups = r.randint(4, 16), r.randint(5, 40), r.choice(("1/2", "2/3", "3/4", "3/5", "5/6", "7/8"))
    needed = Fraction(cups) * wanted / servings
    if servings == wanted or not 2 <= needed.denominator <= 16:
        return None
    return {"servings": servings, "wanted": wanted, "cups": cups}, needed


@kind
def book(r: random.Random) -> Drawn:
    first, second = (Fraction(r.randint(1, 5), r.randint(3, 8)) for _ in range(2))
    if max(first, second) >= 1 or first == second:
        return None
    return {"first": first, "second": second}, (1 - first) * (1 - second)


@kind
def urn(r: random.Random) -> Drawn:
    red, blue, green = r.randint(2, 9), r.randint(2, 12), r.randint(2, 12)
    return {"red": red, "blue": blue, "green": green}, Fraction(blue + green, red + blue + green)


@kind
def together(r: random.Random) -> Drawn:
    first, second = r.randint(2, 9), r.randint(3, 15)
    needed = Fraction(first * second, first + second)
    return ({"first": first, "second": second}, needed) if needed.denominator > 1 and first < second else None


@kind
def ratio(r: random.Random) -> Drawn:
    large, small, part = r.randint(3, 9), r.randint(2, 7), r.randint(12, 95)
    if large <= small or math.gcd(large, small) > 1:
        return None
    return {"total": part * (large + small), "large": large, "small": small}, part * (large - small)


@kind
def film(r: random.Random) -> Drawn:
    start, minutes = r.randint(9 * 60, 20 * 60), r.randint(75, 210)
    return {"start": clock(start), "minutes": minutes}, clock(start + minutes)


@kind
def journey(r: random.Random) -> Drawn:
    start, length = r.randint(6 * 60, 11 * 60), r.randint(125, 590)
    if length % 60 < 2:
        return None
    return {"start": clock(start), "end": clock(start + length)}, f"{length // 60} hours {length % 60} minutes"


@kind
def rope(r: random.Random) -> Drawn:
    length, pieces, each = Fraction(r.randint(24, 160), 4), r.randint(4, 18), 5 * r.randint(5, 24)
    rest = length - Fraction(pieces * each, 100)
    if rest <= 1 or rest.denominator == 1:
        return None
    return {"length": decimal(length), "pieces": pieces, "each": each}, f"{decimal(rest)} metres"


@kind
def speed(r: random.Random) -> Drawn:
    fast, minutes = r.randint(42, 96), r.choice((135, 140, 150, 160, 165, 195, 200, 210, 220))
    if fast * minutes % 60:
        return None
    return {"distance": fast * minutes // 60, "hours": minutes // 60, "minutes": minutes % 60}, f"{fast} km/h"


@kind
def shopping(r: random.Random) -> Drawn:
    many, few, first, second = r.randint(3, 6), r.randint(2, 3), 5 * r.randint(15, 59), 5 * r.randint(35, 90)
    note = r.choice((20, 50))
    rest = 100 * note - many * first - few * second
    if not 0 < rest < 50 * note:
        return None
    return {"many": many, "few": few, "first": price(first), "second": price(second), "note": note}, money(rest)


@kind
def plans(r: random.Random) -> Drawn:
    low, cheap, more, amount = r.randint(8, 25), r.randint(2, 4), r.randint(1, 5), r.randint(4, 18)
    return {"low": low, "dear": cheap + more, "high": low + more * amount, "cheap": cheap}, amount


@kind
def interest(r: random.Random) -> Drawn:
    total, rate, years = 50 * r.randint(5, 90), Fraction(r.randint(3, 14), 2), r.randint(2, 6)
    return {"sum": total, "rate": decimal(rate), "years": years}, money(total * rate * years)


@kind
def temperature(r: random.Random) -> Drawn:
    start, up, down = -r.randint(3, 18), r.randint(4, 15), r.randint(5, 19)
    return ({"start": start, "up": up, "down": down}, f"{start + up - down} °C") if up != down else None


@kind
def snail(r: random.Random) -> Drawn:
    depth, up, down = r.randint(9, 40), r.randint(3, 8), r.randint(2, 6)
    if not down < up < depth:
        return None
    return {"depth": depth, "up": up, "down": down}, -(-(depth - up) // (up - down)) + 1


@kind
def weekday(r: random.Random) -> Drawn:
    day, days = r.randrange(7), r.randint(10, 160)
    return ({"day": DAYS[day], "days": days}, DAYS[(day + days) % 7]) if days % 7 else None


@kind
def map_scale(r: random.Random) -> Drawn:
    scale, length = r.choice((100, 200, 250, 400, 500, 750)), Fraction(r.randint(7, 45), 2)
    found = scale * length / 1000
    return ({"scale": scale, "length": decimal(length)}, f"{decimal(found)} kilometres") if found != 1 else None


@kind
def blend(r: random.Random) -> Drawn:
    first, second, dear, cheap = r.randint(2, 12), r.randint(2, 12), r.randint(9, 20), r.randint(4, 8)
    cents = Fraction(100 * (first * dear + second * cheap), first + second)
    wanted: dict[str, object] = {"first": first, "second": second, "dear": dear, "cheap": cheap}
    return (wanted, money(cents)) if cents.denominator == 1 and first != second else None


def sentence_forms() -> dict[str, list[str]]:
    """The forms of each kind, with names in braces where quantities and people go."""
    _, *parts = (FOLDER / "sentences.txt").read_text(encoding="utf-8").split("## ")
    kinds = [[" ".join(form.split()) for form in part.strip().split("\n\n")] for part in parts]
    return {name: forms for name, *forms in kinds}


def problems() -> Iterator[tuple[str, dict[str, str]]]:
    """The name of the file, and the row, of every problem."""
    forms = sentence_forms()
    for name, draw in KINDS.items():
        seen: list[dict[str, object]] = []
        rng = random.Random(f"word problems/{name}")
        while len(seen) < EACH:
            found = draw(rng)
            if found is None or found[0] in seen:
                continue
            quantities, answer = found
            (a, she), (b, _), (c, _) = rng.sample(PEOPLE, 3)
            people = {"A": a, "B": b, "C": c, "she": she, "She": she.title(), "her": {"she": "her", "he": "his"}[she]}
            number = len(seen)
            text = forms[name][number % len(forms[name])].format(**people, **quantities)
            training = "whole_numbers" if isinstance(answer, int) else "amounts"
            file = "held_out" if number >= EACH - HELD_OUT else training
            yield file, {"id": f"{name}-{number:02}", "problem": text, "answer": str(answer), "kind": name}
            seen.append(quantities)


def main(folder: Path = FOLDER) -> None:
    """Write the three files."""
    lines: dict[str, list[str]] = {}
    for file, row in problems():
        lines.setdefault(file, []).append(json.dumps(row, ensure_ascii=False) + "\n")
    for file, text in lines.items():
        (folder / f"{file}.jsonl").write_text("".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
