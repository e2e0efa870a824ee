"""The language server: documents, completions, status. Never imports torch."""
