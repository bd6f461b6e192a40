"""See it: what a model would be trained on, as text, as a page, as a plot."""

from .page import to_html
from .plotting import plot
from .text import show

__all__ = ["plot", "show", "to_html"]
