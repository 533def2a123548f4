"""What a run is: its folder and files, how it begins, and how it is opened."""
