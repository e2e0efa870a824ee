"""``draftline setup``: writes an editor's configuration, after it has shown what would change."""
