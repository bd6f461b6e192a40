"""Lengths, and the ways to write them down: ``cu_seqlens``, document ids, position ids.

Three documents of 3, 1 and 2 tokens, one after the other:

    lengths        3      1  2
    cu_seqlens     0      3  4    6      where each begins, and where the last ends
    document_ids   0 0 0  1  2 2
    position_ids   0 1 2  0  0 1

The ``…_from_lengths`` functions write, the ``lengths_from_…`` functions read what others have packed. All take numpy
arrays, CPU tensors or plain lists, and return the kind they were given (numpy for lists). A row never continues in the
next one, so the readers take ``(tokens,)`` or ``(rows, tokens)`` and list the documents row by row.
"""

from .lengths import IGNORE_INDEX as IGNORE_INDEX
from .lengths import INT32_MAX as INT32_MAX
from .lengths import MOST_TOKENS as MOST_TOKENS
from .lengths import Array as Array
from .lengths import as_lengths as as_lengths
from .markers import lengths_from_eos as lengths_from_eos
from .reading import lengths_from_cu_seqlens as lengths_from_cu_seqlens
from .reading import lengths_from_position_ids as lengths_from_position_ids
from .reading import lengths_from_segment_ids as lengths_from_segment_ids
from .writing import cu_seqlens_from_lengths as cu_seqlens_from_lengths
from .writing import document_ids_from_lengths as document_ids_from_lengths
from .writing import position_ids_from_lengths as position_ids_from_lengths
