"""Masks from document boundaries, for every backend."""
