"""See it: what a model would be trained on, as text, as a page, as a plot.

    Plan | packed Dataset | PackedDataset | PackedBatch  ->  Overview (numbers, warnings, any one Row)  ->  show
                                                                                                            to_html
                                                                                                            plot

High utilisation is no evidence of right boundaries. So each form shows where documents begin, who attends to whom,
which tokens count in the loss, and what was left out.
"""

from .page import to_html
from .plotting import plot
from .text import show

__all__ = ["plot", "show", "to_html"]
