"""The fixed-shape, document-safe parts of drafter training."""
