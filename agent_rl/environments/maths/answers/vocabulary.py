"""Words and commands by what they are."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """A vocabulary."""
    return frozenset(text.split())


GREEK = words(
    r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi
    \rho \varrho \sigma \varsigma \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi
    \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar \aleph"""
)
FUNCTIONS = words(
    """sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh ln log lg exp sqrt abs gcd lcm max min
    floor ceil"""
)
FONTS = words(
    r"""\text \textrm \textbf \textit \textnormal \textsf \texttt \mathrm \mathbf \mathit \mathsf \mathnormal
    \operatorname \boldsymbol \bm \mbox \hbox \emph \underline"""
)
DECORATIONS = words(
    r"""\hat \widehat \bar \overline \vec \overrightarrow \tilde \widetilde \dot \ddot \mathcal \mathscr \mathfrak
    \mathbb"""
)
