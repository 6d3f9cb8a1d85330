"""From a call to an entry: the frames, the text of their functions, and the dispatchers that keep both."""
