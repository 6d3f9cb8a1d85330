"""Example programs for minidynamo."""
