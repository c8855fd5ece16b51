"""Measurements as ratios against a yardstick taken in the same run."""
