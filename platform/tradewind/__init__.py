"""Elastic training on Ray, on the cheapest accelerators that any cloud has at the moment."""

__version__ = "0.1.0"
