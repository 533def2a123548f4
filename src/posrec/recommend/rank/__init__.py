"""The one ranker: exact, 8-bit or by faiss, with similarity and diversity."""
