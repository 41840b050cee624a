"""DP-SGD at many noise levels at once is DP-SGD at each of them."""

from __future__ import annotations

import torch
from torch.nn import functional

from noiseproof.data import Dataset, Public
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.predictions import Convexified
from noiseproof.networks import Network, StackedNetwork
from noiseproof.privacy import Reproducible
from papers.lu.stacked_dp_sgd import clipped_sums, fit_noise_levels

NETWORK = Network("lu-mlp", (7,), 4)


def records(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(count, 7, generator=generator)
    return Dataset("r", features, torch.randint(4, (count,), generator=generator), Public((7,), tuple("abcd")))


def test_sums_of_clipped_gradients_are_those_of_single_records():
    data, clip = records(20), 0.5
    stack = StackedNetwork.of(NETWORK, [1, 2, 3])
    order = ("1.weight", "1.bias", "3.weight", "3.bias")
    targets = functional.one_hot(data.labels, 4).float()
    found = clipped_sums(data.features, targets, [stack.parameters[name] for name in order], clip)
    for index in range(3):
        module = stack.module(index)
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        norms = []
        for record, label in zip(data.features, data.labels, strict=True):
            loss = functional.cross_entropy(module(record[None]), label[None])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
            norms.append(float(norm))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient * min(1.0, clip / float(norm))
        assert min(norms) < clip < max(norms) or min(norms) > clip  # clipping is really tested
        for part, total in zip(found, sums, strict=True):
            torch.testing.assert_close(part[index], total, rtol=1e-4, atol=1e-5)


def test_on_the_programs_form_of_the_loss_a_record_s_gradient_is_that_loss_s_own():
    data, clip, alphas = records(20), 0.05, (0.0, 1.0, 5.0)
    stack = StackedNetwork.of(NETWORK, [1, 1, 1])
    order = ("1.weight", "1.bias", "3.weight", "3.bias")
    targets = functional.one_hot(data.labels, 4).float()
    weights = [stack.parameters[name] for name in order]
    found = clipped_sums(data.features, targets, weights, clip, torch.tensor(alphas))
    module = stack.module(0)
    for index, alpha in enumerate(alphas):
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for record, label in zip(data.features, data.labels, strict=True):
            logits, whole = module(record[None])[None], torch.ones(1, 1)
            loss = functional.cross_entropy(logits[0], label[None])
            if alpha:
                loss = Convexified(alpha, "code")(logits, label[None, None], whole)[0]
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = float(torch.sqrt(sum(gradient.square().sum() for gradient in gradients)))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient * min(1.0, clip / norm)
        for part, total in zip(found, sums, strict=True):
            torch.testing.assert_close(part[index], total, rtol=1e-4, atol=1e-5)


def test_a_step_is_the_engine_s_but_for_its_noise():
    data = records(30)
    stack = StackedNetwork.of(NETWORK, [5])
    weights = [stack.parameters[name] for name in ("1.weight", "1.bias", "3.weight", "3.bias")]
    targets = functional.one_hot(data.labels, 4).float()
    ours = clipped_sums(data.features, targets, weights, 1.0)
    module = stack.module(0)
    engine = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1e-9, sample_rate=1.0, rng=Reproducible(0))
    for batch, labels in engine.batches(data.features, data.labels, steps=1):
        engine.backward(functional.cross_entropy(module(batch), labels, reduction="none"))
    for part, parameter in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(part[0] / engine.expected_batch, parameter.grad, rtol=1e-4, atol=1e-6)
    engine.close()


def test_less_noise_learns_more_and_a_level_does_not_depend_on_the_others():
    data = records(200)
    data.labels[:] = data.features[:, :4].argmax(1)
    settings = {"epochs": 30, "batch_size": 50, "lr": 0.02, "seed": 3}

    def fitted(sigmas):
        return fit_noise_levels(NETWORK, data, sigmas, rng=Reproducible(1), **settings)

    stack = fitted([100.0, 0.3])
    noisy, clear = ((logits.argmax(1) == data.labels).double().mean() for logits in stack.logits(data.features))
    assert clear > noisy + 0.2
    alone = fitted([0.3])
    for name, value in alone.parameters.items():
        torch.testing.assert_close(stack.parameters[name][1], value[0], rtol=1e-3, atol=1e-4)
