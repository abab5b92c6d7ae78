"""Measuring on real GPUs, and replaying what was measured."""
