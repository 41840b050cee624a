"""Answer a fixed number of queries: the model stays inside, and every answer is paid for."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import noiseproof as npf
from noiseproof.errors import BudgetError


def main() -> None:
    """Train, save, load, ask, and ask too much."""
    data = npf.load("digits")
    release = npf.train("votes", data.train, epsilon=3, queries=100)
    print(
        f"{release.card.verdict}: epsilon {release.card.proven.epsilon:.2f} for all {release.queries} answers together"
    )

    with TemporaryDirectory() as folder:
        release.save(folder)
        loaded = npf.load_bundle(folder)
    labels = loaded.predict(data.test.features[:60]).argmax(1)
    print(f"{(labels == data.test.labels[:60]).float().mean():.0%} of 60 right, {loaded.queries_left} answers left")
    try:
        loaded.predict(data.test.features[:60])
    except BudgetError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
