"""Which documents share a pack: numpy only."""
