"""One reader for each foreign log: lines in, reports out. A line that it cannot read is passed over, and counted."""
