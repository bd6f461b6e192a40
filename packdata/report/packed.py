"""Reading a packed dataset: lengths from Arrow's offsets, tokens only of the packs that are looked at."""

LOOKED_AT = 2_000_000
"""Most slots that are read to count targets and end markers; of larger datasets, evenly spaced packs are read."""

READ = ("input_ids", "labels", "completion_mask", "assistant_masks", "seq_lengths")
"""Columns that say what is learnt."""
