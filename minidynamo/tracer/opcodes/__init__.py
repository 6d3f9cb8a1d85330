"""One small function per opcode, one file per family."""
