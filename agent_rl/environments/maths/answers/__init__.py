"""Whether the content of a box states the gold answer. See docs/answer_checking.md.

``comparing.check`` is the way in: ``notation`` spells a text in one way, ``reading`` finds what it states, with
``grammar`` for the formulas in it, and ``comparing`` decides, with ``equality`` for formulas and ``sets`` for sets of
numbers. Nothing is imported here: finding a box needs no mathematics.
"""
