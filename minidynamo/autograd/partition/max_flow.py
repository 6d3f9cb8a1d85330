"""Owns the maximum flow through a network, by Dinic's algorithm, and the minimum cut that follows from it.

Knows no graph of operations: `minimum_cut.py` builds the network.
"""

from __future__ import annotations

UNLIMITED = 1 << 100
"""The capacity of an edge that no cut contains."""


class FlowNetwork:
    """A network of `count` nodes, numbered from 0."""

    def __init__(self, count: int) -> None:
        #: Node -> its edges. Edge `e ^ 1` is the reverse of edge `e`.
        self.edges: list[list[int]] = [[] for _ in range(count)]
        #: Edge -> the node where it ends.
        self.ends: list[int] = []
        #: Edge -> the flow that it can still take.
        self.rest: list[int] = []

    def add(self, start: int, end: int, capacity: int = UNLIMITED) -> None:
        """Adds an edge."""
        for node, other, rest in ((start, end, capacity), (end, start, 0)):
            self.edges[node].append(len(self.ends))
            self.ends.append(other)
            self.rest.append(rest)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """Returns the nodes after the minimum cut; of all minimum cuts, the cut nearest to the sink.

        Raises ValueError if each cut contains an unlimited edge.
        """
        flow = 0
        while source in (distances := self._distances(sink)):
            flow += self._fill(source, sink, distances)
            if flow >= UNLIMITED:
                raise ValueError("the flow is not limited")
        return {*distances}

    def _distances(self, sink: int) -> dict[int, int]:
        """Returns the distance to the sink, over edges that can take more flow, for each node that reaches the sink."""
        found = {sink: 0}
        reached = [sink]
        for node in reached:
            for edge in self.edges[node]:
                before = self.ends[edge]
                if self.rest[edge ^ 1] and before not in found:
                    found[before] = found[node] + 1
                    reached.append(before)
        return found

    def _fill(self, source: int, sink: int, distances: dict[int, int]) -> int:
        """Sends flow over shortest paths until each contains a full edge; returns the flow."""
        tried = dict.fromkeys(distances, 0)  # node -> the number of its edges that lead nowhere any more
        path: list[int] = []
        node, total = source, 0
        while True:
            if node == sink:
                total += self._send(path)
                path, node = [], source
            edges, nearer = self.edges[node], distances[node] - 1
            position = tried[node]
            while position < len(edges):
                edge = edges[position]
                if self.rest[edge] and distances.get(self.ends[edge]) == nearer:
                    break
                position += 1
            tried[node] = position
            if position < len(edges):
                path.append(edges[position])
                node = self.ends[path[-1]]
            elif path:
                node = self.ends[path.pop() ^ 1]
                tried[node] += 1
            else:
                return total

    def _send(self, path: list[int]) -> int:
        """Sends as much flow over a path as its edges can take; returns the amount."""
        amount = min(self.rest[edge] for edge in path)
        for edge in path:
            self.rest[edge] -= amount
            self.rest[edge ^ 1] += amount
        return amount
