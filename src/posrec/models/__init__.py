"""PosRec and its baselines, one file each."""
