"""Building blocks of models: SessionBatch, SessionGraph and shared layers. They need only torch."""
