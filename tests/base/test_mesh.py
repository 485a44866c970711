"""The mesh: coordinates, groups, reading and writing, and the texts of its errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from torch.distributed.device_mesh import DeviceMesh

from spmd_lab import Mesh
from spmd_lab.errors import MeshError
from tests.base.strategies import meshes


def test_a_mesh_is_a_value() -> None:
    mesh = Mesh(dp=2, tp=4)
    assert (mesh.axes, mesh.shape, mesh.size, mesh.ndim, mesh.device_type) == (("dp", "tp"), (2, 4), 8, 2, None)
    assert mesh == Mesh(dp=2, tp=4)
    assert hash(mesh) == hash(Mesh(dp=2, tp=4))
    assert len({mesh, Mesh(tp=4, dp=2), Mesh(dp=2, tp=4, device_type="cpu"), Mesh(dp=2, cp=4)}) == 4
    with pytest.raises(AttributeError):
        mesh.shape = (8,)


def test_it_prints_as_it_is_made() -> None:
    assert repr(Mesh(dp=2, tp=4)) == "Mesh(dp=2, tp=4)"
    assert repr(Mesh(dp=2, device_type="cuda")) == "Mesh(dp=2, device_type='cuda')"
    assert str(Mesh(dp=2, tp=4)) == "dp=2 x tp=4"


def test_a_large_mesh_costs_nothing() -> None:
    mesh = Mesh(pp=64, dp=512, tp=8)
    assert mesh.size == 262_144
    assert mesh.coordinate(262_143) == (63, 511, 7)


def test_the_last_axis_runs_fastest() -> None:
    mesh = Mesh(dp=2, tp=4)
    assert [mesh.coordinate(rank) for rank in range(8)] == list(itertools.product(range(2), range(4)))
    assert mesh.axis_size("tp") == 4
    assert mesh.axis_index("tp") == 1


@given(meshes())
def test_ranks_and_coordinates_are_inverse(mesh: Mesh) -> None:
    coordinates = [mesh.coordinate(rank) for rank in range(mesh.size)]
    assert len(set(coordinates)) == mesh.size
    assert [mesh.rank(coordinate) for coordinate in coordinates] == list(range(mesh.size))


@given(meshes())
def test_coordinates_are_those_of_torch(mesh: Mesh) -> None:
    whole = torch.arange(mesh.size).reshape(mesh.shape)
    assert all(whole[mesh.coordinate(rank)] == rank for rank in range(mesh.size))


@given(meshes())
def test_the_groups_of_an_axis_part_the_ranks(mesh: Mesh) -> None:
    whole = torch.arange(mesh.size).reshape(mesh.shape)
    for position, axis in enumerate(mesh.axes):
        expected = {tuple(row.tolist()) for row in whole.movedim(position, -1).reshape(-1, mesh.shape[position])}
        assert {mesh.group(rank, axis) for rank in range(mesh.size)} == expected
        assert all(rank in mesh.group(rank, axis) for rank in range(mesh.size))


@given(meshes())
def test_text_is_read_back(mesh: Mesh) -> None:
    text = str(mesh).replace(" x ", ",")
    assert Mesh.parse(text) == mesh
    assert Mesh.parse(text, device_type="cuda") == mesh.with_device_type("cuda")


def test_text_may_have_spaces() -> None:
    assert Mesh.parse(" dp = 2 , tp=4 ") == Mesh(dp=2, tp=4)


@pytest.mark.parametrize(
    ("names", "mesh"),
    [(("dp", "tp"), Mesh(dp=2, tp=4, device_type="cpu")), (None, Mesh(axis0=2, axis1=4, device_type="cpu"))],
)
def test_from_a_device_mesh(names: tuple[str, ...] | None, mesh: Mesh) -> None:
    ranks = torch.arange(8).reshape(2, 4)
    device_mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)
    assert Mesh.from_device_mesh(device_mesh) == mesh


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Mesh, "a mesh needs at least one axis\n  try: Mesh(dp=4)"),
        (
            lambda: Mesh("dp=2", 4),
            "the axes of a mesh have names\n  argument: Mesh('dp=2', 4)\n"
            "  try: Mesh(dp=2, tp=4); Mesh.parse reads text, Mesh.from_device_mesh a DeviceMesh",
        ),
        (
            lambda: Mesh(**{"d-p": 2}),
            "'d-p' is no name for an axis\n  try: letters, digits and underscores, as in dp=4",
        ),
        (lambda: Mesh(dp=0), "axis 'dp' has size 0\n  argument: dp=0\n  try: a whole number from 1"),
        (lambda: Mesh(dp=True), "axis 'dp' has size True\n  argument: dp=True\n  try: a whole number from 1"),
        (lambda: Mesh(dp=2.0), "axis 'dp' has size 2.0\n  argument: dp=2.0\n  try: a whole number from 1"),
        (lambda: Mesh.parse(""), "'' is not an axis and its size\n  argument: ''\n  try: dp=2,tp=4"),
        (lambda: Mesh.parse("dp=2, tp"), "'tp' is not an axis and its size\n  argument: 'dp=2, tp'\n  try: dp=2,tp=4"),
        (lambda: Mesh.parse("dp=-2"), "'dp=-2' is not an axis and its size\n  argument: 'dp=-2'\n  try: dp=2,tp=4"),
        (lambda: Mesh.parse("dp=0"), "axis 'dp' has size 0\n  argument: dp=0\n  try: a whole number from 1"),
        (
            lambda: Mesh.parse("dp=2,dp=4"),
            "axis 'dp' stands twice\n  argument: 'dp=2,dp=4'\n  try: give each axis its own name",
        ),
        (
            lambda: Mesh.parse("device_type=2"),
            "'device_type' is no name for an axis\n  argument: 'device_type=2'\n  try: another name",
        ),
        (
            lambda: Mesh(dp=2, tp=4).axis_index("tq"),
            "dp=2 x tp=4 has no axis 'tq'\n  argument: tq\n  try: did you mean 'tp'?",
        ),
        (
            lambda: Mesh(dp=2, tp=4).axis_size("model"),
            "dp=2 x tp=4 has no axis 'model'\n  argument: model\n  try: there are: dp, tp",
        ),
        (
            lambda: Mesh(dp=2, tp=4).coordinate(8),
            "dp=2 x tp=4 has no rank 8\n  argument: 8\n  try: ranks run from 0 to 7",
        ),
        (
            lambda: Mesh(dp=2, tp=4).coordinate(-1),
            "dp=2 x tp=4 has no rank -1\n  argument: -1\n  try: ranks run from 0 to 7",
        ),
        (
            lambda: Mesh(dp=2, tp=4).group(9, "dp"),
            "dp=2 x tp=4 has no rank 9\n  argument: 9\n  try: ranks run from 0 to 7",
        ),
        (
            lambda: Mesh(dp=2, tp=4).rank((1, 4)),
            "dp=2 x tp=4 has no coordinate (1, 4)\n  argument: (1, 4)\n  try: an index per axis, from 0 to 1, 0 to 3",
        ),
        (
            lambda: Mesh(dp=2, tp=4).rank(3),
            "dp=2 x tp=4 has no coordinate 3\n  argument: 3\n  try: an index per axis, from 0 to 1, 0 to 3",
        ),
        (
            lambda: Mesh(dp=2, tp=4).rank((1,)),
            "dp=2 x tp=4 has no coordinate (1,)\n  argument: (1,)\n  try: an index per axis, from 0 to 1, 0 to 3",
        ),
    ],
)
def test_the_text_of_each_error(make: object, text: str) -> None:
    with pytest.raises(MeshError) as caught:
        make()
    assert str(caught.value) == text
