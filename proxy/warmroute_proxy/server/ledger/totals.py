"""What the settled turns of a tenant add up to: its row in the table `total`."""

from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Final


@dataclass(slots=True)
class TenantTotals:
    """The sums of one tenant. The fields are the columns of the table, in its order."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0

    def values(self) -> tuple[int, ...]:
        """The sums in the order of `TOTALS`."""
        return _VALUES(self)

    def plus(self, other: "TenantTotals") -> "TenantTotals":
        """The sums of both."""
        return TenantTotals(*map(add, self.values(), other.values()))


TOTALS: Final = tuple(field.name for field in fields(TenantTotals))
_VALUES: Final = attrgetter(*TOTALS)

ADD_TO_TOTAL: Final = f"""INSERT INTO total VALUES (?{", ?" * len(TOTALS)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in TOTALS)}"""  # noqa: S608 - constants
"""The statement that adds a tenant's `values`, behind its name, to the table."""
