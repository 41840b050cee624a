"""A linear probe: a frozen vision transformer from a folder, and a new head that is trained privately.

The model is a small random one, saved and loaded as a pretrained one would be; the pictures are scikit-learn's digits.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification

import noiseproof as npf


def main(epochs: int = 2) -> None:
    """Train the head within epsilon 3."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(**sizes, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    pretrained = tempfile.mkdtemp()
    ViTForImageClassification(config).save_pretrained(pretrained)
    model = AutoModelForImageClassification.from_pretrained(pretrained)
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)

    data = npf.load("digits")
    pictures = data.train.features.reshape(-1, 1, 8, 8)
    records = [{"pixel_values": x, "labels": y} for x, y in zip(pictures, data.train.labels, strict=True)]
    loader = DataLoader(records, batch_size=256, shuffle=True)
    optimizer = torch.optim.Adam(model.classifier.parameters(), lr=0.05)
    engine = npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=epochs, max_grad_norm=0.5)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
    print(f"{engine.gradients.coordinates:,} of {model.num_parameters():,} parameters were trained")
    print(engine.release(preprocessing="public").card.text)


if __name__ == "__main__":
    main()
