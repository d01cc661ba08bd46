"""Labels: the words that may stand behind a number, or name it, without changing what it says.

The lists are closed. A word that no list holds is part of the answer: ``5 inverse`` is not 5, ``not x = 5`` is not 5.
"""

from __future__ import annotations

import re

from agent_rl.environments.maths.answers.vocabulary import words

_NOUNS = words(
    """adult album animal answer ant appetizer apple apricot arc arrangement arrow article asymptote aunt baby bacterium
    bag bagel baker ball balloon ballot banana band bar barrel basket bat batch bathroom battery bead bean bear bed
    bedroom bee beetle bell bench berry bicycle bike bill bin bird biscuit block blossom boat bone book boot bottle
    bouquet bowl box boy bracelet branch brick bridge brother brownie brush bucket bud bug building bulb bun bunny bus
    bush butterfly button cabbage cage cake calf calorie camel can candidate candle candy cap car card carrot carton
    case cat caterpillar cell center centre chair chapter cherry chessboard chicken chick child children chip chocolate
    choice chord church circle city class classmate classroom clip clock cloud clown club coat cockroach code
    coefficient coin collection color coloring colour column combination comic committee component computer condition
    configuration constraint container convention cookie copy corner couch country course cousin cow cracker crate
    crayon cube cucumber cupcake curve customer cycle cylinder daisy daughter deer desk dessert diagonal diagram
    dictionary digit dime dinosaur direction dish divisor doctor dog doghouse doll dolphin domino donkey donut door dot
    doughnut dragonfly drawer dress driver drop drum duck duckling eagle ear edge egg element elephant employee engine
    engineer entry envelope equation error event exam exponent extremum eye face factor factorization family farm
    farmer father feather female fence ferry figure file film finger fish flag flavor flavour flea floor flower fly
    folder follower foot-pound football fork fox fraction friend frog fruit function game garden gem ghost gift giraffe
    girl glass glove goal goat goose geese grade grandchild grandchildren grandmother grandfather grape graph group
    guard guest guitar hamburger hamster hand handshake hat head heart hen hexagon hole home horse hospital hotdog
    hotel house human hundred-dollar husband inflection inhabitant insect instance integer intercept intersection
    interval island item jacket jar jelly jellybean jewel job joke judge key kid king kitchen kite kitten knight label
    ladder lady lake lamp language laptop lawn layer leaf leaves leg lego lemon lesson letter level library light
    lightbulb line lion list lollipop lorry loser lot machine magazine magnet male mango map marble mark marker
    marshmallow mask match matrix matrices meal medal meeting member men merchant mermaid message method mistake monkey
    mosquito mother motorcycle mountain mouse mice move movie muffin mug multiple mushroom musician nail name necklace
    neighbor neighbour nest net newspaper nickel node note notebook novel number nurse nut object octagon office onion
    operation option orange order ordering outcome outfit owl owner pack package packet page painting palindrome pan
    pancake panda paper parabola parallelogram parameter parent park part participant partition partner party passenger
    patch path patient pattern payment pea peach peanut pear pearl pebble pen pencil penguin penny pennies pentagon
    people pepper period permutation person persons pet petal petunia phone photo photograph photographer piano picture
    pie piece pig pigeon pill pillow pilot pin pineapple pirate pizza place plan plane planet plant plate play player
    plum pocket point polygon polynomial pond pony position possibility possibilities post postcard poster potato prime
    princess prisoner prize problem product program proof puppy purse puzzle pyramid quadrilateral queen question
    rabbit raccoon race radio rat ray rearrangement record rectangle region relation relative rental repetition
    representation rhombus ribbon ring road robot rock roll room root rope rose round route row rubber ruler run sailor
    salad sandwich sausage saw scarf scenario school scientist scissors scoop seashell seat section sector seed segment
    selection sequence servant serving set shape share sheep sheet shelf shelves shell ship shirt shoe shop shot shrimp
    shuffle side sibling sister skirt slice slide slot snack snail snake soccer sock soda soldier solution son song
    sophomore soup spade sphere spider spoon spot square squirrel stair stamp star state statement station statue steak
    step stick sticker stone stop store story stories strawberry street string student subject subset sum sunflower
    surface sweater sweet swimmer symbol symmetry system table tail tank task tart taxi teacher team teammate teen term
    test text textbook theorem thing ticket tie tiger tile tire toast toddler token tomato tool tooth teeth toothpick
    topping tourist town toy track tractor trail train transformation translation trapezoid traveler treat tree trial
    triangle trick trip truck trumpet tulip turkey turn turtle type tyre umbrella uncle value van variable vase
    vegetable vehicle vertex vertices video view villager violet visit visitor volunteer vote voter vowel walk wall war
    watch watermelon way website whale wheel wife win window winner woman women word worker worm wreath writer yacht
    zebra zero zeroes"""
)
"""What is counted. ``pair``, ``couple``, ``quarter``, ``third``, ``score`` and ``time`` are not here: they change the
number.
"""
_ADJECTIVES = words(
    """additional admissible adjacent available bad big black blue brown colored common congruent consecutive diatonic
    different distinct distinguishable dry empty equilateral fewer-digit five-digit four-digit free full gold golden
    good gray green grey identical incongruent individual integer integral interior isosceles large lattice little lost
    natural new nonempty non-empty non-congruent noncongruent nonzero old ordered orange perfect pink positive possible
    purple random real red regular remaining right scalene seven-digit silver similar six-digit small solid straight
    tall three-digit total two-digit unique unordered unsold used valid vertical horizontal whole white wild wooden
    yellow young"""
)
_UNCHANGED = words(
    "people men women children grandchildren mice geese teeth sheep fish deer shrimp vertices matrices leaves shelves"
)
"""Plurals that do not end in s."""
_ORDERED = words("pair triple triplet quadruple tuple 4-tuple")
"""What is counted, but only behind ``ordered`` or ``unordered``."""
_AFTER = words("total altogether left remaining overall")
_LINKS = words("of per in the a an")
_QUANTITIES = words(
    """age amount angle answer area average base breadth circumference cost count depth determinant diameter difference
    discriminant distance duration earnings energy expectation expected force frequency gain height hypotenuse income
    length limit mass max maximum mean median min minimum mode money norm number perimeter period price probability
    product profit quotient radius range rank rate ratio remainder result revenue root salary score side sides size
    slope solution speed sum surface temperature term time total trace value variance velocity voltage volume wage
    weight width work x-coordinate y-coordinate y-intercept x-intercept final required minimal maximal least greatest
    smallest largest shortest longest shaded requested desired"""
)
"""What a number can be said to be."""
_FILLERS = words("the a an of in for to at on with and by between from its his her their this that all our")

MAX_WORDS = 6
"""Of one label."""


def singular(word: str) -> str:
    """A word in lower case without the ending of its plural."""
    word = word.lower()
    for ending, replacement in (
        ("ies", "y"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("xes", "x"),
        ("sses", "ss"),
        ("oes", "o"),
    ):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word.removesuffix(ending) + replacement
    return word.removesuffix("s") if len(word) > 2 and not word.endswith("ss") else word


def label_words(text: str, *, one: bool = False) -> frozenset[str] | None:
    """The words of a label, in the singular; None if one of them could change the number. A label counts something:
    ``ways``, ``ordered pairs``, ``distinct integers``, ``apples in total``. It stands in the plural, unless it is
    ``one``: ``5 prime`` and ``5 square`` may be 5' and 5^2.
    """
    written = [word.lower() for word in re.findall(r"[A-Za-z0-9-]+", text)]
    if not 0 < len(written) <= MAX_WORDS or re.fullmatch(r"[A-Za-z\s.4-]*", text) is None:
        return None
    while len(written) > 1 and written[-1] in _AFTER:
        del written[-1]
        if len(written) > 1 and written[-1] == "in":
            del written[-1]
    found = [singular(word) for word in written]
    if not one and not any(word != plain or word in _UNCHANGED for word, plain in zip(written, found, strict=True)):
        return None
    nouns = 0
    for before, word in zip(["", *found], found, strict=False):
        if word in _ORDERED:
            if before not in ("ordered", "unordered"):
                return None
            nouns += 1
        elif word in _NOUNS:
            nouns += 1
        elif word not in _ADJECTIVES and not (before and word in _LINKS):
            return None
    return (
        frozenset(found) - (_LINKS - {"per", "of"})
        if nouns and (found[-1] in _NOUNS or found[-1] in _ORDERED)
        else None
    )


def is_quantity(name: str) -> bool:
    """Whether words name a quantity, so that "the area = 12" says 12: ``area``, ``the number of red apples``."""
    found = [word.lower() for word in re.findall(r"[A-Za-z-]+", name) if not word.isupper()]
    found = [word for word in found if word not in _FILLERS]
    return all(
        word in _QUANTITIES or singular(word) in _QUANTITIES or singular(word) in _NOUNS or word in _ADJECTIVES
        for word in found
    )
