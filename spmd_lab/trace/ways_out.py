"""What to write instead of operators whose shapes are not known while they are traced."""

from __future__ import annotations

__all__ = ["given_as_number", "known_beforehand", "told_by"]


def told_by(operator: str) -> str:
    """How to say which shapes an operator returns: whose it is decides what can be done."""
    if operator.startswith("aten."):
        return "a custom operator (torch.library) around this part, with a register_fake of its own"
    return f'torch.library.register_fake("{"::".join(operator.split(".")[:2])}")'


def known_beforehand(operator: str) -> str:
    """What to write instead of an operator that makes as many elements as it finds."""
    return next((hint for names, hint in _INSTEAD.items() if any(each in operator for each in names)), _SOME_SIZE)


def given_as_number(function: str) -> str:
    """What to write instead of a function that looks at the value of a tensor."""
    return _NUMBERS.get(function, _SOME_NUMBER)


_SOME_NUMBER = (
    "torch.where for a branch, a Python number for .item(), or a custom operator (torch.library) around this part"
)
_NUMBERS = {
    "narrow": "start as a Python number; or index_select(dim, start + torch.arange(length))",
    "one_hot": "num_classes=, as a Python number",
    "tensor_split": "the places to split at as Python numbers",
}
_SOME_SIZE = "a shape that is known beforehand, or a custom operator (torch.library) around this part"
_INSTEAD = {
    ("nonzero", "index", "masked_select", "argwhere"): "torch.where(mask, x, 0) instead of x[mask]; topk of a fixed "
    "number of elements where only some shall go on",
    ("repeat_interleave",): "output_size=, if every rank knows it",
    ("unique",): "a table of all values there can be, and scatter_add or torch.isin against it",
    ("bincount",): "torch.zeros(length).scatter_add(0, x, ones): a length that is known beforehand",
}
