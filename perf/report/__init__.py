"""Keeps what was measured as JSON, and shows it as Markdown tables and charts."""
