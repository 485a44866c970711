"""An expansion that shows its proof."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from spmd_lab.expand.expansion import Expansion

if TYPE_CHECKING:
    from spmd_lab.prove import VerifyReport

__all__ = ["ProvedExpansion", "proved"]


@dataclass(frozen=True, repr=False, eq=False)
class ProvedExpansion(Expansion):
    """An expansion as any other, which shows itself with the proof of its program.

    Parameters
    ----------
    report : VerifyReport
        The proof.
    """

    report: VerifyReport = field(kw_only=True)

    def __repr__(self) -> str:
        return repr(self.card(self.report))

    def _repr_html_(self) -> str:
        return self.card(self.report)._repr_html_()


def proved(expansion: Expansion) -> ProvedExpansion:
    """Run every rank of an expansion's program, and keep the proof with it.

    Examples
    --------
    >>> import torch, spmd_lab as sl
    >>> expansion = sl.spmd_expand(torch.nn.Linear(4, 2), torch.ones(8, 4), mesh=sl.Mesh(dp=4), batch="dp")
    >>> proved(expansion).report.ok
    True
    """
    report = expansion.program.verify()
    found = ProvedExpansion(**{each.name: getattr(expansion, each.name) for each in fields(Expansion)}, report=report)
    vars(found)["program"] = expansion.program  # the very program that was proved
    return found
