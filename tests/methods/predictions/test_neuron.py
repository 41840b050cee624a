"""Algorithm 1: its law is the paper's, and as epsilon goes to 0 its accuracy goes where mathematics says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from noiseproof.methods.predictions import NeuronNoise
from noiseproof.methods.predictions.neuron import NoiseAhead
from noiseproof.privacy import Reproducible, Secure
from papers.lu.accountings import limit_accuracy

DRAWS = 200_000
ALARM = 1e-6
"""How often a statistical test here fails by chance, at most."""


def noises(law: str, epsilon: float = 20.0, classes: int = 4) -> NeuronNoise:
    return NeuronNoise(epsilon, classes, neuron=0.7, probability=0.9, law=law)


def sources(noise: NeuronNoise):
    return {
        "reproducible": Reproducible(3),
        "ahead": NoiseAhead(noise, Reproducible(4)),
        "secure": Secure._for_test(bytes(range(32))),
    }


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("source", ["reproducible", "ahead", "secure"])
def test_one_neuron_gets_noise_of_the_stated_law_and_is_picked_by_the_stated_odds(law, source):
    noise = noises(law)
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0], dtype=torch.float64)
    answers = noise.answers(logits.expand(DRAWS, -1).clone(), sources(noise)[source])
    # A neuron's share of the answer against the others' shows which of them moved.
    logs = answers.log()
    change = logs - logits
    change = change - change.median(dim=1, keepdim=True).values  # three of four move alike
    moved = change.abs().argmax(1)
    assert float(change.abs().sort(dim=1).values[:, 2].max()) < 1e-6
    odds = torch.softmax(noise.part / (2 * noise.probability) * torch.softmax(logits, 0), 0)
    counts = torch.bincount(moved, minlength=4)
    assert stats.chisquare(counts.numpy(), (odds * DRAWS).numpy()).pvalue > ALARM
    drawn = change.gather(1, moved[:, None]).flatten().numpy()
    law_ = stats.laplace(scale=noise.scale) if law == "laplace" else stats.norm(scale=noise.scale)
    assert stats.kstest(drawn, law_.cdf).pvalue > ALARM


def test_scales_are_the_paper_s():
    assert noises("laplace", 1.0, 30).scale == pytest.approx(0.7 * 61)
    assert noises("gaussian", 1.0, 30).scale == pytest.approx(0.7 * 11)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e6])
def test_answers_are_probabilities_at_any_epsilon(law, epsilon):
    noise = noises(law, epsilon)
    logits = 50 * torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    for rng in sources(noise).values():
        answers = noise.answers(logits.clone(), rng)
        assert torch.isfinite(answers).all()
        torch.testing.assert_close(answers.sum(1), torch.ones(1000))


def test_a_large_epsilon_leaves_the_answer_as_it_is():
    noise = noises("gaussian", 1e9)
    logits = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise.answers(logits.clone(), Reproducible(0)), logits.softmax(1))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_as_epsilon_goes_to_0_accuracy_goes_to_its_limit(classes):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(DRAWS, classes, generator=generator)
    labels = torch.randint(classes, (DRAWS,), generator=generator)
    # A classifier that is often right, and whose second guess sometimes is.
    logits.scatter_add_(1, labels[:, None], torch.full((DRAWS, 1), 1.5))
    best = logits.topk(2, dim=1).indices
    accuracy, second = ((best[:, rank] == labels).double().mean().item() for rank in (0, 1))
    noise = noises("gaussian", 1e-9, classes)
    answered = noise.answers(logits, Reproducible(0)).argmax(1)
    found = (answered == labels).double().mean().item()
    expected = limit_accuracy(accuracy, second, classes)
    # Five standard errors: less than one false alarm in a million.
    assert abs(found - expected) < 5 * math.sqrt(0.25 / DRAWS)
    if classes == 2:
        assert expected == pytest.approx(0.5)
    # The note leaves the second guess out, which for two and three classes shows.
    note = (1 / classes + (1 - 1 / classes) * accuracy) / 2
    assert expected - note == pytest.approx(second / (2 * classes))


def test_for_two_classes_the_choice_does_not_matter_and_less_is_spent_than_claimed():
    """Given d-z: the difference of two neurons moves by 2 d-z, under noise of one law whichever neuron got it."""
    for law in ("laplace", "gaussian"):
        noise = noises(law, 1.0, 2)
        logits = torch.tensor([0.4, -0.3], dtype=torch.float64)
        answers = noise.answers(logits.expand(DRAWS, -1).clone(), Reproducible(5)).log()
        seen = (answers[:, 0] - answers[:, 1]).numpy() - 0.7
        law_ = stats.laplace(scale=noise.scale) if law == "laplace" else stats.norm(scale=noise.scale)
        assert stats.kstest(seen, law_.cdf).pvalue > ALARM
        spent = 2 * noise.neuron / noise.scale
        assert spent == pytest.approx(2 / 5 if law == "laplace" else 2 / 3)


def test_draws_ahead_do_not_depend_on_how_queries_are_batched():
    noise = noises("laplace")
    logits = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    whole = noise.answers(logits.clone(), NoiseAhead(noise, Reproducible(1)))
    ahead = NoiseAhead(noise, Reproducible(1))
    parts = torch.cat([noise.answers(part.clone(), ahead) for part in logits.split(7)])
    torch.testing.assert_close(whole, parts)
    assert len(np.unique(whole.numpy(), axis=0)) == 300
