"""Faults on purpose, and load. They start servers, stores and commands as the tests do."""
