"""What a shell offers after the tab key: names that the command line takes. What is heavy is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def _among(names: Callable[[], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _methods() -> Iterable[str]:
    from noiseproof.methods import registry

    return registry()


def _data() -> Iterable[str]:
    from noiseproof.data.named import named_sets

    return named_sets()


def _networks() -> Iterable[str]:
    from noiseproof.networks import names

    return names()


def _studies() -> Iterable[str]:
    from noiseproof.cli.checkout import load_part

    return load_part("papers").names()


def _attacks() -> Iterable[str]:
    from noiseproof.attacks import attack_names

    return attack_names()


def _accountants() -> Iterable[str]:
    from noiseproof.privacy.accountants import ACCOUNTANTS

    return ACCOUNTANTS


methods, data, networks = _among(_methods), _among(_data), _among(_networks)
studies, attacks, accountants = _among(_studies), _among(_attacks), _among(_accountants)
neighbours = _among(lambda: ("add-or-remove", "replace-one"))
scales = _among(lambda: ("small", "paper"))
