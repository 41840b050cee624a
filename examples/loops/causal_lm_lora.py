"""Fine-tune a language model with LoRA (peft): only its small matrices are trained, clipped and noised.

The text is made here and the model is a small random GPT-2, saved and loaded as a pretrained one would be: put a folder of
real weights in the place of `pretrained`.
"""

from __future__ import annotations

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import noiseproof as npf

TEXT = "the {} is in the {} and nobody knows why"
THINGS = ["key", "cat", "letter", "ring", "map"]


def records() -> list[dict[str, torch.Tensor]]:
    """Sentences as bytes."""
    sentences = [TEXT.format(one, other) for one in THINGS for other in THINGS for _ in range(16)]
    ids = [torch.tensor(list(sentence.encode().ljust(48)[:48])) for sentence in sentences]
    return [{"input_ids": each, "labels": each.masked_fill(each == 32, -100)} for each in ids]


def main(epochs: int = 2) -> None:
    """Fine-tune within epsilon 8."""
    pretrained = tempfile.mkdtemp()
    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=48, n_embd=32, n_layer=2, n_head=2)).save_pretrained(
        pretrained
    )
    base = AutoModelForCausalLM.from_pretrained(pretrained)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loader = DataLoader(records(), batch_size=50, shuffle=True)
    engine = npf.make_private(model, optimizer, loader, epsilon=8, delta=1e-4, epochs=epochs)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
    print(f"{engine.gradients.coordinates:,} of {sum(p.numel() for p in model.parameters()):,} parameters were trained")
    print(engine.release(preprocessing="public").card.text)


if __name__ == "__main__":
    main()
