"""A script for each library, which trains and ranks as its user would."""
