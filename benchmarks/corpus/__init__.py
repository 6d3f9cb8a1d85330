"""Small programs in the style of users, by subject: the input of `benchmarks.coverage` for both compilers."""
