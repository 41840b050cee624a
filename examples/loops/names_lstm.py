"""Which language is a name from? An LSTM over characters, as in Opacus' tutorial; the names are made here."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import noiseproof as npf

SYLLABLES = {
    "italian": "ri na to gli era no bel lu",
    "finnish": "kka nen ai vi maa ti lä yh",
    "welsh": "ll wyn gw ed dd ian th ow",
}
LANGUAGES = list(SYLLABLES)


def name_of(language: int) -> tuple[str, int]:
    """A made name with its language."""
    return "".join(random.choices(SYLLABLES[LANGUAGES[language]].split(), k=3)), language


def collate(batch: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters as numbers, filled up with zeros."""
    characters = [torch.tensor([ord(c) % 128 for c in name]) for name, _ in batch]
    return pad_sequence(characters, batch_first=True), torch.tensor([language for _, language in batch])


class Classifier(nn.Module):
    """An embedding, an LSTM and a head on the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, len(LANGUAGES))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits."""
        there = (characters > 0).unsqueeze(-1)
        states, _ = self.lstm(self.embedding(characters))
        return self.head((states * there).sum(1) / there.sum(1))


def main(epochs: int = 6) -> None:
    """Train within epsilon 3."""
    random.seed(0)
    model, data = Classifier(), [name_of(place % len(LANGUAGES)) for place in range(900)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(data[:800], batch_size=100, shuffle=True, collate_fn=collate)
    engine = npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-4, epochs=epochs)
    for _ in range(epochs):
        for characters, languages in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(characters), languages).backward()
            optimizer.step()
    model.eval()
    characters, languages = collate(data[800:])
    print(engine.release(preprocessing="public", classes=LANGUAGES).card.text)
    print(f"accuracy {(model(characters).argmax(1) == languages).float().mean():.1%}")


if __name__ == "__main__":
    main()
