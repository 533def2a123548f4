"""What models are made of: the batch and graph of sessions, and blocks that two or more models share. torch alone."""
