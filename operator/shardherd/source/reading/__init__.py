"""Reading ranges of offsets: where they start, how much a Fetch asks for, what is lost, and the records as Arrow batches."""
