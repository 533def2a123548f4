"""Recommendations people can use: raw item ids in, raw item ids out."""
