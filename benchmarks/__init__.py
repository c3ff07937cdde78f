"""Measurements of pqindex against PyArrow on the same files, as ratios from one interleaved run."""
