"""Recommending with a trained run: raw item ids in, raw item ids out."""
