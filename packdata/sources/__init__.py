"""Arrow in and out."""
