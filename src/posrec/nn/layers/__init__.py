"""The layers that two or more models share."""
