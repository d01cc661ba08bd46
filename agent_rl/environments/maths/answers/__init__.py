"""Whether the content of a box states the gold answer. See docs/answer_checking.md.

``comparing.check`` is the way in: ``notation`` spells a text in one way, ``reading`` finds the statement in it, with
``formulas`` for its formulas, and ``comparing`` decides, with ``evaluation`` for formulas. Nothing is imported here:
finding a box needs no mathematics.
"""
