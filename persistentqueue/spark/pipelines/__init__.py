"""Pipelines: stages of Spark that take DataFrames from named queues and put their results to others, exactly once."""
