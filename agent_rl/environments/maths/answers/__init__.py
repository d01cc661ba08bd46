"""Whether two answers are the same: from text to notation, statement, formula and value. See docs/answer_checking.md.

``rewards.answers_equal`` is the way in. Nothing is imported here: finding a box needs no mathematics.
"""
