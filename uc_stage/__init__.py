"""uc-stage: a Delta table to Parquet in a volume, to a verified local copy, to a measured throughput."""

__version__ = "0.1.0"
