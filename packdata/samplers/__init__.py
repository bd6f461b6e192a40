"""The order and grouping of documents."""
