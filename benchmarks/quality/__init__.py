"""How good the recommendations of models and settings are."""
