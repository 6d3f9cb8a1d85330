"""The peak of memory that a graph has in eager.

Owns estimates and rehearsals on tensors without data.
Does not own what compiled graphs need (`memory/`).
Enter at `rehearsal.eager_memory`.
"""
