"""One reader for each kind of log: lines in, reports out. A line that a reader cannot read is skipped, and counted."""
