"""The packdata command."""
