"""A language model of stacked LSTM layers with tied embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTMModel(nn.Module):
    """Maps tokens (batch, n) and a state to scores (batch, n, vocabulary) and the next state."""

    def __init__(self, vocabulary: int = 40, width: int = 24, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers, self.width = layers, width
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Starts with a state of zeros if none is given."""
        if state is None:
            state = self.zero_state(tokens.size(0))
        out, state = self.lstm(self.drop(self.embedding(tokens)), state)
        return self.decoder(self.drop(out)), state

    def zero_state(self, batch: int) -> State:
        """Returns the state before the first token."""
        weight = next(self.parameters())
        zeros = weight.new_zeros(self.layers, batch, self.width)
        return zeros, zeros.clone()


class LSTMCell(nn.Module):
    """An unrolled LSTM layer, with a loop step for each token: (batch, n, width) to (batch, n, hidden)."""

    def __init__(self, width: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(width, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the hidden state after each token."""
        hidden = cell = x.new_zeros(x.size(0), self.hidden)
        outputs = []
        for token in self.from_input(x).unbind(1):
            take, forget, new, show = (token + self.from_hidden(hidden)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            outputs += [hidden]
        return torch.stack(outputs, dim=1)


def example_inputs() -> tuple[Tensor]:
    """Two sequences of tokens."""
    return (torch.randint(40, (2, 7)),)


def cell_inputs() -> tuple[Tensor]:
    """Two sequences of vectors."""
    return (torch.randn(2, 6, 12),)
