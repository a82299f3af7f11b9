"""Measurements of a queue at work: histograms, samples over time, causes of stalls. No files, threads or clock."""
