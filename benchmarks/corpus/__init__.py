"""Small programs as users write them, by subject: what `benchmarks.coverage` gives to both compilers."""
