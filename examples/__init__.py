"""Programs that show minidynamo at work."""
