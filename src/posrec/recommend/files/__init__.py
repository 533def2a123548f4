"""Recommendations for whole files of sessions."""
