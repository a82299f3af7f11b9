"""Numbers as text, charts and tables, for terminals and HTML pages. Pure functions: no files, threads or clock."""
