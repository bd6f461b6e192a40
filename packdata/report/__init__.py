"""See what a model is trained on."""
