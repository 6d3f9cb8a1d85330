"""The graph under construction: what it takes from outside, how calls become nodes, which graph is open, its end."""
