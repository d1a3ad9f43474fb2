"""A Delta table as its log tells it: versions, files, schema, deleted rows, and where the files are."""
