"""Shows what minidynamo does: progress, logs and reports."""
