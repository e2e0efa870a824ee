"""Prints what the shop has and what it should order, as plain text for the notice board.

Some functions here are unfinished on purpose; examples/README.md lists the places.
"""

from __future__ import annotations

import sys
from pathlib import Path

from inventory import Article, Inventory

WIDTH = 60


def read_inventory(path: Path) -> Inventory:
    """Reads lines like ``A17;claw hammer;1499;12;5;tools``; blank lines and comments are skipped."""
    inventory = Inventory()
    for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        fields = line.split(";")
        if len(fields) != 6:
            raise ValueError(f"{path}:{line_number}: 6 fields expected, {len(fields)} found")
        number, name, price, quantity, minimum, shelf = fields
        inventory.add(
            Article(
                number=number,
                name=name,
                price=int(price),
                quantity=int(quantity),
                minimum=int(minimum),
                shelf=shelf,
            )
        )
    return inventory


def format_price(cents: int) -> str:
    """1499 -> '14.99'"""
    return


def format_row(article: Article) -> str:
    mark = "!" if article.is_scarce else " "
    left = f"{mark} {article.number:<6}{article.name}"
    right = f"{article.quantity:>4} x {format_price(article.price):>8}"
    return left + right.rjust(WIDTH - len(left))


def print_report(inventory: Inventory) -> None:
    for article in sorted(inventory, key=lambda article: article.name):
        print(format_row(article))
    print("-" * WIDTH)
    total = format_price(inventory.total_value())
    print("total" + total.rjust(WIDTH - len("total")))


def order_quantity(article: Article) -> int:
    """How many pieces bring an article back to twice its minimum."""


def print_orders(inventory: Inventory) -> None:
    """One line for each article that must be ordered."""
    for article in inventory.scarce():
        print(f"{order_quantity(article):>4}  {article.number:<6}{article.name}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: report.py FILE", file=sys.stderr)
        return 2
    inventory = read_inventory(Path(arguments[0]))
    print_report(inventory)
    print_orders(inventory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
