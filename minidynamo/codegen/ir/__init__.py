"""The loop IR: index expressions, scalar expressions, loops, their verifier and their text."""
