"""Stock of a small hardware shop: what lies on which shelf, what it is worth, what must be ordered.

Some functions here are unfinished on purpose; examples/README.md lists the places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Article:
    """One kind of thing that is sold. Prices are in cents."""

    number: str
    name: str
    price: int
    quantity: int = 0
    minimum: int = 5
    shelf: str = "back room"

    @property
    def value(self) -> int:
        return self.price * self.quantity

    @property
    def is_scarce(self) -> bool:
        return self.quantity < self.minimum


class UnknownArticleError(KeyError):
    """There is no article with this number."""


class NotEnoughError(ValueError):
    """More was asked for than is there."""


class Inventory:
    """All articles of the shop by their number."""

    def __init__(self) -> None:
        self._articles: dict[str, Article] = {}

    def __len__(self) -> int:
        return

    def __iter__(self) -> Iterator[Article]:
        return iter(self._articles.values())

    def __contains__(self, number: str) -> bool:
        return number in self._articles

    def add(self, article: Article) -> None:
        if article.number in self._articles:
            raise ValueError(f"article {article.number} exists already")
        self._articles[article.number] = article

    def find(self, number: str) -> Article:
        try:
            return self._articles[number]
        except KeyError:
            raise UnknownArticleError(number) from None

    def receive(self, number: str, quantity: int) -> None:
        """Put a delivery on the shelf."""
        if quantity <= 0:
            raise ValueError("a delivery has at least one piece")
        article = self.find(number)
        article.quantity += quantity

    def sell(self, number: str, quantity: int = 1) -> int:
        """Take pieces off the shelf; returns what they cost."""
        article = self.find(number)
        if article.quantity < quantity:
            raise NotEnoughError(f"{article.name}: {quantity} wanted, {article.quantity} there")

        return article.price * quantity

    def total_value(self) -> int:
        """What everything in the shop is worth, in cents."""
        return

    def scarce(self) -> list[Article]:
        """Articles that must be ordered, the scarcest first."""
        found = [article for article in self if article.is_scarce]
        found.sort(key=lambda article: article.quantity)
        return found

    def on_shelf(self, shelf: str) -> list[Article]:
        """Articles on one shelf, by name."""
