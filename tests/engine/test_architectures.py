"""Public training scripts' models as they are: nanoGPT, PyTorch's word_language_model, spectral norm in training."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import PerRecordGradients, PrivateGradients
from noiseproof.privacy import Reproducible

VOCABULARY, LENGTH, WIDTH, RECORDS = 11, 6, 8, 5


class CausalSelfAttention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.0), nn.Dropout(0.0)
        self.register_buffer("bias", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x, flash):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (part.view(B, T, 2, C // 2).transpose(1, 2) for part in (q, k, v))
        if flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class LayerNorm(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = LayerNorm(bias), CausalSelfAttention(bias), LayerNorm(bias)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, bias=bias), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=bias)
        )

    def forward(self, x, flash):
        x = x + self.attn(self.ln_1(x), flash)
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """karpathy/nanoGPT, model.py: tied head, positions without a record dimension, losses over (B x T)."""

    def __init__(self, *, flash=True, bias=True):
        super().__init__()
        self.flash = flash
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Block(bias) for _ in range(2)),
                "ln_f": LayerNorm(bias),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x, self.flash)
        logits = self.lm_head(self.transformer.ln_f(x))
        each = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), reduction="none")
        return each.view(b, t).mean(1)


class WordLanguageModel(nn.Module):
    """pytorch/examples, word_language_model: (tokens, records), a recurrent layer, a decoder that may be tied."""

    def __init__(self, rnn_type, tie_weights):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.0), nn.Embedding(VOCABULARY, WIDTH)
        kinds = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}
        if rnn_type in kinds:
            self.rnn = nn.RNN(WIDTH, WIDTH, 2, nonlinearity=kinds[rnn_type], dropout=0.0)
        else:
            self.rnn = getattr(nn, rnn_type)(WIDTH, WIDTH, 2, dropout=0.0)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        if tie_weights:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens, targets):
        inputs, targets = tokens.t(), targets.t()
        zeros = self.decoder.weight.new_zeros(2, inputs.size(1), WIDTH)
        hidden = (zeros, zeros.clone()) if isinstance(self.rnn, nn.LSTM) else zeros
        output, _ = self.rnn(self.drop(self.encoder(inputs)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, VOCABULARY)
        each = F.nll_loss(F.log_softmax(decoded, dim=1), targets.reshape(-1), reduction="none")
        return each.view(targets.shape).mean(0)


class Spectral(nn.Module):
    """Spectral norm in training: every pass moves its power iteration, by the weights alone."""

    def __init__(self):
        super().__init__()
        spectral_norm = nn.utils.parametrizations.spectral_norm
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH),
            spectral_norm(nn.Conv1d(LENGTH, 4, 3, padding=1)),
            nn.Tanh(),
            nn.Flatten(),
            spectral_norm(nn.Linear(4 * WIDTH, VOCABULARY)),
        )

    def forward(self, tokens, targets):
        return F.cross_entropy(self.layers(tokens), targets[:, 0], reduction="none")


MODELS = {
    "nanoGPT": NanoGPT,
    "nanoGPT without flash attention": lambda: NanoGPT(flash=False, bias=False),
    **{
        f"word_language_model, {kind}{', tied' if tied else ''}": lambda kind=kind, tied=tied: WordLanguageModel(
            kind, tied
        )
        for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")
        for tied in (False, True)
    },
    "spectral norm": Spectral,
}


def built(name):
    torch.manual_seed(0)
    model = MODELS[name]().double().train()
    return model, torch.randint(VOCABULARY, (RECORDS, LENGTH)), torch.randint(VOCABULARY, (RECORDS, LENGTH))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_single_records(name):
    model, tokens, targets = built(name)
    before = copy.deepcopy(model.state_dict())
    with PerRecordGradients(model) as engine:
        gradients = engine.backward(model(tokens, targets), check=True)
        found, norms = gradients.materialise(), gradients.squared_norms()
        assert engine._routes._known, "followed by shapes alone, without a fallback"
    for record in range(RECORDS):
        model.load_state_dict(before)
        one = slice(record, record + 1)
        alone = torch.autograd.grad(model(tokens[one], targets[one]).sum(), engine.parameters)
        for own, expected in zip(found, alone, strict=True):
            torch.testing.assert_close(own[record], expected, rtol=1e-9, atol=1e-12)
        length = sum(float(expected.square().sum()) for expected in alone)
        assert length * (1 - 1e-9) <= float(norms[record]) <= length * 1.03


@pytest.mark.parametrize("name", ["nanoGPT", "word_language_model, LSTM, tied", "spectral norm"])
def test_they_train_with_all_checks(name):
    model, tokens, targets = built(name)
    engine = PrivateGradients(model, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.9, rng=Reproducible(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch, wanted in engine.batches(tokens.repeat(3, 1), targets.repeat(3, 1), steps=4):
        engine.backward(model(batch, wanted))
        optimizer.step()
    assert engine.steps == 4
