"""Operators that end or delay the rank that they run on; each is the identity otherwise."""

from __future__ import annotations

import os
import time

import torch

import spmd_lab as sl


@torch.library.custom_op("spmd_lab_tests::vanish", mutates_args=())
def vanish(x: torch.Tensor) -> torch.Tensor:
    """End the process where a number is negative."""
    if x.numel() and x.min() < 0:
        os._exit(7)
    return x.clone()


@torch.library.custom_op("spmd_lab_tests::linger", mutates_args=())
def linger(x: torch.Tensor) -> torch.Tensor:
    """Take as many seconds as the largest number says."""
    if x.numel():
        time.sleep(max(0.0, x.max().item()))
    return x.clone()


for _op in (vanish, linger):
    _op.register_fake(torch.empty_like)


def define() -> None:
    """Import this module: a process that runs programs of these operators has to know them."""


def rule_of(op: object) -> sl.RegisteredRule:
    """The rule by which an operator is divided, for as long as it is entered."""
    return sl.register_rule(op._opoverload, ["b/* -> b/*"], example=(torch.rand(4) / 1000,))  # type: ignore[attr-defined]


def program_of(op: object, samples: int = 4) -> sl.Program:
    """The sum of what an operator makes, its input divided over two ranks."""
    mesh = sl.Mesh(dp=2)
    return sl.spmd_expand(lambda x: op(x * 1.0).sum(), torch.zeros(samples), mesh=mesh, batch="dp").program  # type: ignore[operator]
