"""PosRec and its baselines, one file each; the contract is in base.py, the list of models in
registry.py."""
