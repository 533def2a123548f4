"""Where clicks come from: files, formats, readers."""
