"""Building blocks of models: SessionBatch, SessionGraph, and layers that two or more models share.
Needs only torch."""
