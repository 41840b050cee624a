"""How a run's budget went over its steps or its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget
    from noiseproof.releases import Release

POINTS = 8


def spending(release: Release, budget: Budget) -> dict[str, Any] | None:
    """Proven epsilon after a share of the steps or answers, at the budget's delta; None where nothing is proven.

    `{"unit": "steps" | "answers", "done": [...], "epsilon": [...]}`. It ends at the card's own number.
    """
    card, proven = release.card, release.card.proven
    if proven is None:
        return None
    ran = card.ran
    answer: Any = getattr(release, "answer", None)
    if "steps" in ran and {"rate", "sigma"} <= ran.keys():
        from noiseproof.guarantees import accountants
        from noiseproof.guarantees.events import sampled_gaussian

        total, unit = int(ran["steps"]), "steps"

        def after(done: int) -> float:
            event = sampled_gaussian(float(ran["rate"]), float(ran["sigma"]), done)
            return accountants.epsilon(
                event, budget.delta, accountant=proven.accountant, neighbours=budget.neighbours
            ).epsilon

    elif hasattr(answer, "cost") and "queries" in ran:
        total, unit = int(ran["queries"]), "answers"

        def after(done: int) -> float:
            return float(answer.cost(done, budget.delta)[0])

    else:
        return None
    done = sorted({max(1, round(total * share / POINTS)) for share in range(1, POINTS + 1)})
    return {
        "unit": unit,
        "done": [0, *done],
        "epsilon": [0.0, *(after(count) for count in done[:-1]), proven.epsilon],
    }
